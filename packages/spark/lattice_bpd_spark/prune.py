"""Pruning by relative entropy on a cluster."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.extensions import require
from lattice_bpd_spark.lm import GROUPED, SparkLM
from lattice_bpd_spark.session import clear_errors, guarded
from lattice_bpd_spark.shuffle import Bucket, PairBuckets, close, group, map_buckets, to_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LOG_PROB = "log_prob float"
_WITH_PROB = "log_prob float, context_prob double"
_SCORED = "ngram binary, log_prob float, score double"


def prune_lm(lm: SparkLM, *, theta: float | None = None, prune_to: int | None = None) -> SparkLM:
    """Makes a smaller LM: keeps the same n-grams as :meth:`NGramLM.prune`.

    Args:
        lm: the LM.
        theta: see there.
        prune_to: see there.

    Raises:
        ValueError: no criterion, or a number out of range.

    Source: Stolcke 1998, "Entropy-based pruning of backoff language models"; docs/ngram.md.
    """
    if theta is None and prune_to is None:
        raise ValueError("prune_lm: nothing to do; expected theta or prune_to")
    if theta is not None and not theta >= 0:
        raise ValueError(f"prune_lm: theta is {theta}; expected 0 or above")
    if prune_to is not None and prune_to < 0:
        raise ValueError(f"prune_lm: prune_to is {prune_to}; expected 0 or above")
    if theta is not None and lm.order > 1:
        threshold = float(np.log1p(theta))
        rows = _raised_scores(lm, threshold).persist()
        lm = _keep(
            lm,
            rows,
            rows.where(rows["score"] >= threshold),
        )
    if prune_to is not None and lm.order > 1:
        lm = _prune_to_size(lm, prune_to)
    return lm


def _prune_to_size(lm: SparkLM, target: int) -> SparkLM:
    rows = _raised_scores(lm, -math.inf).persist()
    with clear_errors():
        longer = rows.count()
    too_many = longer + lm.num_words - target
    if too_many <= 0 or longer == 0:
        rows.unpersist()
        return lm
    last_removed = nth_smallest(rows.select("score"), min(longer, too_many))
    return _keep(lm, rows, rows.where(rows["score"] > last_removed))


def _raised_scores(lm: SparkLM, threshold: float) -> DataFrame:
    """``ngram, log_prob, score``: removal costs, propagated from extensions."""
    pairs = PairBuckets(lm.buckets.num_buckets)
    by_pair = group(lm.ngrams(), pairs.assign, pairs.num_buckets, _LOG_PROB)
    with_probs = map_buckets(by_pair, _ContextProbs(lm), f"ngram binary, {_WITH_PROB}")
    buckets = lm.buckets
    by_context = group(with_probs, buckets.assign, buckets.num_buckets, _WITH_PROB)
    scored = map_buckets(by_context, _RemovalCosts(lm), _SCORED)
    return close(scored, lm.order, ["log_prob"], threshold=threshold)


def _keep(lm: SparkLM, scored: DataFrame, rows: DataFrame) -> SparkLM:
    """The LM of some of the scored rows, which stay persisted."""
    kept = rows.select("ngram", "log_prob")
    functions = require("pyspark.sql.functions", "lattice-bpd-spark")
    with clear_errors():
        longest = kept.agg(functions.max(functions.length("ngram"))).collect()[0][0]
    grouped = group(kept, lm.buckets.assign, lm.buckets.num_buckets, _LOG_PROB)
    columns = [part.split()[0] for part in GROUPED.split(", ")]
    return replace(
        lm,
        frame=grouped.select(*columns),
        order=(longest or 4) // 4,
        kept=(*lm.kept, scored),
    )


class _OfBucket:
    """Base of functions on a bucket of an LM."""

    def __init__(self, lm: SparkLM) -> None:
        self._vocabulary, self._unigrams, self._buckets = lm.vocabulary, lm.unigrams, lm.buckets


class _ContextProbs(_OfBucket):
    def __call__(self, bucket: Bucket) -> Iterator[Any]:
        log_probs = bucket.columns["log_prob"]
        probs = _core.context_probs_of_rows(
            self._vocabulary.core, self._unigrams, bucket.symbols, log_probs
        )
        for symbols, values, prob in zip(bucket.symbols, log_probs, probs, strict=True):
            yield from to_rows(symbols, {"log_prob": values, "context_prob": prob})


class _RemovalCosts(_OfBucket):
    def __call__(self, bucket: Bucket) -> Iterator[Any]:
        log_probs = bucket.columns["log_prob"]
        costs = _core.removal_costs_of_rows(
            self._vocabulary.core,
            self._unigrams,
            bucket.symbols,
            log_probs,
            bucket.columns["context_prob"],
        )
        for symbols, values, cost in zip(bucket.symbols, log_probs, costs, strict=True):
            if symbols.shape[1] == 2:
                first = self._buckets.is_first(bucket.number, symbols[:, 0])
                columns = {"log_prob": values[first], "score": cost[first]}
                yield from to_rows(symbols[first], columns)
            else:
                yield from to_rows(symbols, {"log_prob": values, "score": cost})


_DIGIT_BITS = 16
_SIGN = np.uint64(1 << 63)


def nth_smallest(numbers: DataFrame, n: int) -> float:
    """The n-th smallest (n from 1) of the frame's only column, doubles without NaN.

    Radix selection: four passes, each with a histogram of the next 16 bits of the remaining
    candidates. The driver holds 2**16 counts for any size.

    Raises:
        ValueError: there are fewer than n.
    """
    functions = require("pyspark.sql.functions", "lattice-bpd-spark")
    prefix = 0
    for shift in range(64 - _DIGIT_BITS, -1, -_DIGIT_BITS):
        counts = numbers.mapInArrow(guarded(_Histogram(shift, prefix)), "digit int, count long")
        with clear_errors():
            table = counts.groupBy("digit").agg(functions.sum("count")).toArrow()
        histogram = np.zeros(1 << _DIGIT_BITS, np.int64)
        histogram[table.column(0).to_numpy()] = table.column(1).to_numpy()
        up_to = np.cumsum(histogram)
        if up_to[-1] < n:
            raise ValueError(f"there are {up_to[-1]} numbers; expected at least {n}")
        digit = int(np.searchsorted(up_to, n))
        n -= int(up_to[digit] - histogram[digit])
        prefix = prefix << _DIGIT_BITS | digit
    return float(_to_doubles(np.array([prefix], np.uint64))[0])


class _Histogram:
    """For mapInArrow: counts each digit after the prefix."""

    def __init__(self, shift: int, prefix: int) -> None:
        self._shift, self._prefix = shift, prefix

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        pa = require("pyarrow", "lattice-bpd-spark")
        histogram = np.zeros(1 << _DIGIT_BITS, np.int64)
        for batch in batches:
            digits = _to_ordered(batch.column(0).to_numpy()) >> np.uint64(self._shift)
            mine = digits >> np.uint64(_DIGIT_BITS) == np.uint64(self._prefix)
            low = digits[mine] & np.uint64((1 << _DIGIT_BITS) - 1)
            histogram += np.bincount(low.astype(np.int64), minlength=len(histogram))
        used = np.flatnonzero(histogram)
        columns = [pa.array(used.astype(np.int32)), pa.array(histogram[used])]
        yield pa.record_batch(columns, names=["digit", "count"])


def _to_ordered(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint64]:
    """Integers in the same order as the doubles."""
    bits = values.view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _to_doubles(ordered: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    bits = np.where(ordered & _SIGN, ordered ^ _SIGN, ~ordered)
    return bits.astype(np.uint64).view(np.float64)
