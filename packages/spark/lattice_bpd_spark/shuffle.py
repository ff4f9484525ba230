"""Rows of n-grams, their shuffle into buckets, and functions on buckets.

A row's key is its symbols, 4 bytes each in big-endian order, so that Spark sorts keys of one length
as the core sorts n-grams. Each bucket is processed on its own, as arrays by order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lattice_bpd.extensions import require
from lattice_bpd.token_ids import Int64Array
from lattice_bpd_spark.session import guarded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS_AT_ONCE = 1 << 16
SymbolArray = npt.NDArray[np.uint32]
Column = npt.NDArray[Any]


@dataclass(frozen=True)
class Bucket:
    """The n-grams of one bucket.

    Attributes:
        number: which bucket.
        symbols: for order 2, 3, ..: (N, order) uint32, sorted.
        columns: likewise for each other column: (N,).
    """

    number: int
    symbols: list[SymbolArray]
    columns: dict[str, list[Column]]


def num_shuffle_partitions(frame: DataFrame) -> int:
    """The number of shuffle partitions of the session."""
    return int(str(frame.sparkSession.conf.get("spark.sql.shuffle.partitions")))


def move_to(frame: DataFrame, num_partitions: int, column: str) -> DataFrame:
    """Moves rows with the same number (0 .. num_partitions - 1) into one partition."""
    if hasattr(frame, "repartitionById"):  # Spark 4.1: exactly one number in each partition
        functions = require("pyspark.sql.functions", "lattice-bpd-spark")
        return frame.repartitionById(num_partitions, functions.col(column))
    return frame.repartition(num_partitions, column)


def to_rows(symbols: SymbolArray, columns: dict[str, Column]) -> Iterator[Any]:
    """Record batches of n-grams (N, order) and their columns."""
    pa = require("pyarrow", "lattice-bpd-spark")
    length = 4 * symbols.shape[1]
    for begin in range(0, len(symbols), _ROWS_AT_ONCE):
        part = symbols[begin : begin + _ROWS_AT_ONCE]
        offsets = pa.py_buffer(np.arange(len(part) + 1, dtype=np.int32) * length)
        keys = pa.py_buffer(part.astype(">u4").tobytes())
        arrays = [pa.Array.from_buffers(pa.binary(), len(part), [None, offsets, keys])]
        arrays += [pa.array(values[begin : begin + _ROWS_AT_ONCE]) for values in columns.values()]
        yield pa.record_batch(arrays, names=["ngram", *columns])


def to_symbols(keys: Any) -> SymbolArray:
    """(N, order) uint32 of keys of equal length; N is 1 or more."""
    offsets, data = keys.buffers()[1:]
    bounds = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    symbols = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]].view(">u4")
    return symbols.reshape(len(keys), -1).astype(np.uint32)


def by_length(batch: Any) -> Iterator[tuple[int, Any]]:
    """The rows of each order, with the order; the n-grams need not be sorted."""
    pa_compute = require("pyarrow.compute", "lattice-bpd-spark")
    keys = batch.column("ngram")
    lengths = pa_compute.binary_length(keys).to_numpy(zero_copy_only=False) // 4
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        if rows[-1] - rows[0] + 1 == len(rows):
            yield int(length), batch.slice(int(rows[0]), len(rows))
        else:
            yield int(length), batch.take(require("pyarrow", "lattice-bpd-spark").array(rows))


# Maps n-grams (N, order) to (K,) row numbers and their (K,) int32 buckets.
Assign = Callable[[SymbolArray], tuple[Column, Column]]


def group(frame: DataFrame, assign: Assign, num_buckets: int, types: str) -> DataFrame:
    """Moves n-grams into their buckets, sorted by order and symbols.

    Args:
        frame: ``ngram binary`` and others.
        assign: assigns buckets, 0 .. num_buckets - 1.
        num_buckets: number of buckets.
        types: names and types of the other columns.
    """
    functions = require("pyspark.sql.functions", "lattice-bpd-spark")
    tagged = frame.mapInArrow(guarded(_Assign(assign)), f"bucket int, ngram binary, {types}")
    length = functions.length("ngram")
    return move_to(tagged, num_buckets, "bucket").sortWithinPartitions("bucket", length, "ngram")


class _Assign:
    def __init__(self, assign: Assign) -> None:
        self._assign = assign

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        pa = require("pyarrow", "lattice-bpd-spark")
        for batch in batches:
            for _, part in by_length(batch):
                rows, buckets = self._assign(to_symbols(part.column("ngram")))
                taken = part.take(pa.array(rows))
                columns = [pa.array(buckets.astype(np.int32)), *taken.columns]
                yield pa.record_batch(columns, names=["bucket", *taken.schema.names])


def map_buckets(
    frame: DataFrame, function: Callable[[Bucket], Iterator[Any]], types: str
) -> DataFrame:
    """Runs a function on each bucket of a grouped frame; it yields record batches."""
    return frame.mapInArrow(guarded(_MapBuckets(function)), types)


class _MapBuckets:
    def __init__(self, function: Callable[[Bucket], Iterator[Any]]) -> None:
        self._function = function

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        pending: list[Any] = []
        number = -1
        for batch in batches:
            buckets = batch.column("bucket").to_numpy()
            bounds = [0, *(np.flatnonzero(np.diff(buckets)) + 1).tolist(), len(buckets)]
            for begin, end in itertools.pairwise(bounds):
                if begin == end:
                    continue
                if buckets[begin] != number and pending:
                    yield from self._function(_to_bucket(number, pending))
                    pending = []
                number = int(buckets[begin])
                pending.append(batch.slice(begin, end - begin))
        if pending:
            yield from self._function(_to_bucket(number, pending))


def _to_bucket(number: int, batches: Sequence[Any]) -> Bucket:
    names = [name for name in batches[0].schema.names if name not in ("bucket", "ngram")]
    symbols: dict[int, list[SymbolArray]] = {}
    columns: dict[int, list[list[Column]]] = {}
    for batch in batches:
        for length, part in by_length(batch):
            symbols.setdefault(length, []).append(to_symbols(part.column("ngram")))
            values = [part.column(name).to_numpy(zero_copy_only=False) for name in names]
            columns.setdefault(length, []).append(values)
    order = max(symbols)
    missing = [length for length in range(2, order) if length not in symbols]
    if missing:
        raise ValueError(
            f"bucket {number} has n-grams of order {order} and none of {missing[0]}; expected each "
            "n-gram's prefix and suffix"
        )
    return Bucket(
        number,
        [np.concatenate(symbols[length]) for length in range(2, order + 1)],
        {
            name: [
                np.concatenate([values[i] for values in columns[length]])
                for length in range(2, order + 1)
            ]
            for i, name in enumerate(names)
        },
    )


_LARGEST_BUCKET = 1 << 22  # rows; takes about 600 MB while it is processed


@dataclass(frozen=True)
class ContextBuckets:
    """Buckets by the last symbol of the context, for discounts and backoff weights.

    A context h = g c and its suffix h' both end in c, so the bucket of c has everything that their
    sums need. A symbol with too many n-grams has several buckets: n-grams of order 3 and above are
    split by the symbol before c, which h and h' share too, and bigrams c w go to all of them.

    Attributes:
        first: (S,) int64: first bucket of each symbol.
        count: (S,) int64: number of buckets of each symbol.
        num_buckets: number of all buckets.
    """

    first: Int64Array
    count: Int64Array
    num_buckets: int

    def assign(self, symbols: SymbolArray) -> tuple[Column, Column]:
        """See shuffle.Assign."""
        last = symbols[:, -2].astype(np.int64)
        first, count = self.first[last], self.count[last]
        if symbols.shape[1] == 2:
            rows = np.repeat(np.arange(len(symbols)), count)
            nth = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
            return rows, first[rows] + nth
        return np.arange(len(symbols)), first + _mix(symbols[:, -3]) % count

    def is_first(self, number: int, last: Column) -> Column:
        """Which one-symbol contexts have their first bucket here (the others are copies)."""
        return np.asarray(self.first[last.astype(np.int64)] == number)


def make_context_buckets(num_after: Int64Array, num_buckets: int) -> ContextBuckets:
    """Buckets of about the same size.

    Args:
        num_after: (S,): number of n-grams whose second-to-last symbol it is.
        num_buckets: desired number; exceeded if buckets would be too large.
    """
    total = int(num_after.sum())
    size = max(1, min(-(-total // num_buckets), _LARGEST_BUCKET))
    first = (np.cumsum(num_after) - num_after) // size
    count = np.maximum(1, -(-num_after // size))
    return ContextBuckets(first, count, int((first + count).max()))


@dataclass(frozen=True)
class PairBuckets:
    """Buckets by the first two symbols: an n-gram with its prefixes of order 2 and above."""

    num_buckets: int

    def assign(self, symbols: SymbolArray) -> tuple[Column, Column]:
        """See shuffle.Assign."""
        pairs = _mix(symbols[:, 0]) ^ _mix(symbols[:, 1] + np.uint32(1)) * 7
        return np.arange(len(symbols)), pairs % self.num_buckets


def _mix(symbols: SymbolArray) -> Int64Array:
    """31-bit hashes."""
    mixed = symbols.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(33)).astype(np.int64)


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
    functions = require("pyspark.sql.functions", "lattice-bpd-spark")
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
