"""Propagation of scores to sub-n-grams, so that thresholds keep closed sets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lattice_bpd.extras import require

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def close(
    rows: DataFrame, order: int, others: list[str], *, threshold: float = -math.inf
) -> DataFrame:
    """Raises every score to the largest score of the n-grams that contain it.

    The n-grams at or above a threshold are then closed under prefixes and suffixes.

    Args:
        rows: ``ngram binary, score double`` and others, one row for each n-gram of order 2 and
            above; closed under prefixes and suffixes.
        order: the highest order.
        others: names of the other columns, which are unchanged.
        threshold: lower scores are not propagated, which saves rows.

    Returns:
        The same columns.
    """
    functions = require("pyspark.sql.functions", "spark")
    pairs = [(begin, length) for length in range(2, order + 1) for begin in range(order - 1)]
    parts = ", ".join(
        f"if(length(ngram) >= {4 * (begin + length)}, "
        f"substring(ngram, {4 * begin + 1}, {4 * length}), null)"
        for begin, length in pairs
        if begin + length <= order
    )
    raised = functions.expr(
        f"explode(if(score >= {_literal(threshold)}, array_compact(array({parts})), array(ngram)))"
    )
    own = [functions.expr(f"if(part = ngram, {name}, null)").alias(name) for name in others]
    spread = rows.withColumn("part", raised).select("part", "score", *own)
    columns = [functions.max(name).alias(name) for name in others]
    highest = functions.max("score").alias("score")
    return spread.groupBy(functions.col("part").alias("ngram")).agg(*columns, highest)


def _literal(number: float) -> str:
    """A double as a Spark SQL literal, exactly."""
    return f"double('{number!r}')" if math.isfinite(number) else "double('-Infinity')"
