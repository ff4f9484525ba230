"""Distributed estimation: count cutoffs, discounts, probabilities, backoff weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.extensions import require
from lattice_bpd.lm.training import checked_min_counts, warn_of_counts
from lattice_bpd.token_ids import Int64Array
from lattice_bpd_spark.count import SparkCounts, Summary, UInt64Array, count_counts
from lattice_bpd_spark.lm import GROUPED, SparkLM
from lattice_bpd_spark.read import Vocabulary
from lattice_bpd_spark.session import clear_errors, guarded
from lattice_bpd_spark.shuffle import (
    Bucket,
    close,
    group,
    make_context_buckets,
    map_buckets,
    to_rows,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SMOOTHINGS = ("katz", "witten_bell", "absolute")
_COUNTED = "count long, context_count long"


@dataclass(frozen=True)
class _Model:
    """The data for estimating a bucket on an executor."""

    vocabulary: Vocabulary
    counts: UInt64Array
    context_counts: UInt64Array
    count_of_counts: list[list[int]]
    katz_k: int
    smoothing: str
    unseen: str


def train_counts(
    counts: SparkCounts,
    *,
    min_counts: Sequence[int] | None = None,
    smoothing: str = "katz",
    unseen: str = "cost",
    katz_k: int = 5,
    full_count_of_counts: bool = True,
    partitions: int | None = None,
) -> SparkLM:
    """Estimates an LM: the same one as NGramLM.train's on the same sequences.

    Args:
        counts: the counts, to be released only after the LM is written.
        min_counts: one entry for each order; see NGramLM.train.
        smoothing: "katz", "witten_bell" or "absolute": Kneser-Ney's continuation counts
            are not computed on a cluster.
        unseen: see NGramLM.train.
        katz_k: see NGramLM.train.
        full_count_of_counts: see NGramLM.train.
        partitions: number of buckets; default: the number of parts of the counts.

    Raises:
        ValueError: options out of range, or no text.

    Warns:
        KatzWarning, SmoothingWarning: see NGramLM.train.
    """
    cuts = _check_options(counts, min_counts, smoothing)
    rising = np.minimum.accumulate(np.array(cuts[::-1], np.int64))[::-1].tolist() if cuts else []
    summary = counts.summarize(rising)
    rows = counts.frame.mapInArrow(guarded(_ListRows(rising)), f"ngram binary, {_COUNTED}")
    frames: tuple[DataFrame, ...] = ()
    if cuts != rising:
        rows = _close_rows(rows, cuts, counts.order).persist()
        frames = (rows,)
    kept = _count_kept(rows, counts.order)
    unigrams = _cut_unigrams(counts.vocabulary, summary, rows, cuts, rising)
    kept[0, :34] = count_counts(unigrams)
    order = int((np.flatnonzero(kept.sum(axis=1)) + 1).max(initial=1))
    n = summary.count_of_counts.astype(np.int64) if full_count_of_counts else kept[:, :34]
    _warn(order, counts.order, n, kept, katz_k, smoothing)
    model = _Model(
        counts.vocabulary,
        unigrams.astype(np.uint64),
        summary.context_counts,
        n.tolist(),
        katz_k,
        smoothing,
        unseen,
    )
    lm = _estimate(model, rows, summary, partitions or counts.num_parts, order)
    return replace(lm, kept=frames)


def _check_options(
    counts: SparkCounts, min_counts: Sequence[int] | None, smoothing: str
) -> list[int]:
    if smoothing not in _SMOOTHINGS:
        raise ValueError(
            f"smoothing is {smoothing!r}; expected {', '.join(_SMOOTHINGS)}: others are not "
            "computed on a cluster (count there, then `lattice-bpd ngram train`)"
        )
    cuts = checked_min_counts(min_counts)
    if cuts and len(cuts) != counts.order:
        raise ValueError(
            f"min_counts has {len(cuts)} entries; expected {counts.order}, one for each order from "
            f"1 to {counts.order}"
        )
    return cuts


def _estimate(
    model: _Model, rows: DataFrame, summary: Summary, num_buckets: int, order: int
) -> SparkLM:
    symbols = _core.estimate_symbols(
        model.vocabulary.core,
        model.counts,
        model.count_of_counts,
        model.katz_k,
        model.smoothing,
        model.unseen,
    )
    buckets = make_context_buckets(summary.num_after, num_buckets)
    grouped = group(rows, buckets.assign, buckets.num_buckets, _COUNTED)
    frame = map_buckets(grouped, _EstimateBucket(model), GROUPED)
    return SparkLM(frame, model.vocabulary, symbols, order, buckets)


class _ListRows:
    """For mapInArrow: the n-grams of a part with their counts."""

    def __init__(self, min_counts: list[int]) -> None:
        self._min_counts = min_counts

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for run in batch.column("run"):
                for symbols, *counts in _core.list_runs([run.as_py()], self._min_counts):
                    names = ("count", "context_count")
                    columns = {
                        name: values.astype(np.int64)
                        for name, values in zip(names, counts, strict=True)
                    }
                    yield from to_rows(symbols.view(np.uint32), columns)


class _EstimateBucket:
    def __init__(self, model: _Model) -> None:
        self._model = model

    def __call__(self, bucket: Bucket) -> Iterator[Any]:
        model = self._model
        log_probs = _core.estimate_rows(
            model.vocabulary.core,
            bucket.symbols,
            [column.astype(np.uint64) for column in bucket.columns["count"]],
            [column.astype(np.uint64) for column in bucket.columns["context_count"]],
            model.counts,
            model.context_counts,
            model.count_of_counts,
            model.katz_k,
            model.smoothing,
            model.unseen,
        )
        for symbols, values in zip(bucket.symbols, log_probs, strict=True):
            number = np.full(len(symbols), bucket.number, np.int32)
            yield from to_rows(symbols, {"log_prob": values, "bucket": number})


def _close_rows(rows: DataFrame, cuts: list[int], order: int) -> DataFrame:
    """For decreasing min_counts: drops n-grams that no kept n-gram needs."""
    functions = require("pyspark.sql.functions", "lattice-bpd-spark")
    smallest = functions.expr(
        "element_at(array(" + ", ".join(f"{cut}L" for cut in cuts) + "), "
        "cast(length(ngram) / 4 as int))"
    )
    scored = rows.withColumn("score", (functions.col("count") >= smallest).cast("double"))
    closed = close(scored, order, ["count", "context_count"])
    return closed.where("score > 0").drop("score")


def _count_kept(rows: DataFrame, order: int) -> Int64Array:
    """(order, 35): the number of n-grams with count r = 1..33; [34]: with higher counts."""
    groups = rows.selectExpr(
        "cast(length(ngram) / 4 as int) as length", "cast(least(count, 34L) as int) as r"
    )
    with clear_errors():
        table = groups.groupBy("length", "r").count().toArrow()
    length, r, count = (column.to_numpy() for column in table.columns)
    kept = np.zeros((order, 35), np.int64)
    kept[length - 1, r] = count
    return kept


def _cut_unigrams(
    vocabulary: Vocabulary, summary: Summary, rows: DataFrame, cuts: list[int], rising: list[int]
) -> Int64Array:
    """(S,) counts; 0 for symbols that min_counts drop and no kept n-gram contains."""
    counts = summary.counts.astype(np.int64)
    if not cuts or cuts[0] == 1:
        return counts
    needed = summary.num_after > 0
    if cuts != rising:
        needed = _symbols_of(rows, len(counts))
    needed[vocabulary.core.eos] = True
    return np.where(needed | (counts >= cuts[0]), counts, 0)


def _symbols_of(rows: DataFrame, num_symbols: int) -> npt.NDArray[np.bool_]:
    bigrams = rows.where("length(ngram) = 8")
    keys = bigrams.selectExpr("substring(ngram, 1, 4) as symbol").union(
        bigrams.selectExpr("substring(ngram, 5, 4) as symbol")
    )
    with clear_errors():
        table = keys.distinct().toArrow()
    used = np.zeros(num_symbols, np.bool_)
    for key in table.column("symbol").to_pylist():
        used[int.from_bytes(key, "big")] = True
    return used


def _warn(
    order: int, requested: int, n: Int64Array, kept: Int64Array, katz_k: int, smoothing: str
) -> None:
    texts = []
    if order < requested:
        texts.append(
            f"no n-gram of order {order + 1} is left, so the LM has order {order} instead of "
            f"{requested}; sequences are too short or min_counts too high"
        )
    for level in range(1, order) if smoothing == "katz" else ():
        used = kept[level, :34].tolist()
        texts.append(_core.describe_katz_violations(level + 1, n[level].tolist(), used, katz_k))
    warn_of_counts(filter(None, texts), smoothing, stacklevel=4)
