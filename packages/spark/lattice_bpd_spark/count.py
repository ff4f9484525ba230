"""Distributed n-gram counting in the C++ core."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.extensions import require
from lattice_bpd.token_ids import Int32Array, Int64Array
from lattice_bpd_spark.read import SparkCorpus, Vocabulary, read_sequences
from lattice_bpd_spark.session import clear_errors, guarded
from lattice_bpd_spark.shuffle import move_to, num_shuffle_partitions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TOKENS_AT_ONCE = 1 << 23
_RUNS = "part int, run binary, num_sequences long"
_SUMMARY = "level int, index int, count long, context_count long, num_after long"
_SEQUENCES = -1  # level of the row with the number of sequences
UInt64Array = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Summary:
    """The statistics that every executor needs: per symbol, and 33 numbers per order.

    Attributes:
        num_sequences: number of sequences of the corpus.
        counts: (S,) uint64, events, including `</s>` but not `<s>`.
        context_counts: (S,) uint64: occurrences followed by another symbol.
        num_after: (S,) int64: n-grams kept by min_counts whose second-to-last symbol it is.
        count_of_counts: (order, 34): n_r of the whole corpus for r = 1..33; row 0 is order 1.
    """

    num_sequences: int
    counts: UInt64Array
    context_counts: UInt64Array
    num_after: Int64Array
    count_of_counts: UInt64Array


@dataclass(frozen=True)
class SparkCounts:
    """Distributed counts.

    Attributes:
        frame: ``part int, run binary, num_sequences long``: for each part the counts of all
            n-grams that start with its pairs of symbols, as a counts file.
        vocabulary: token ids and special symbols.
        order: length of the longest n-grams.
        num_parts: maximum number of parts.
    """

    frame: DataFrame
    vocabulary: Vocabulary
    order: int
    num_parts: int

    def summarize(self, min_counts: list[int]) -> Summary:
        """Computes the sums over all parts.

        Raises:
            ValueError: the corpus has no text.
        """
        functions = require("pyspark.sql.functions", "lattice-bpd-spark")
        parts = self.frame.mapInArrow(guarded(_Summarize(min_counts)), _SUMMARY)
        columns = ("count", "context_count", "num_after")
        sums = [functions.sum(column).alias(column) for column in columns]
        with clear_errors():
            table = parts.groupBy("level", "index").agg(*sums).toArrow()
        return _to_summary(table, self.vocabulary.core, self.order)

    def release(self) -> None:
        """Frees the persisted frame."""
        self.frame.unpersist()


def count_corpus(
    corpus: SparkCorpus, order: int = 4, *, partitions: int | None = None
) -> SparkCounts:
    """Counts all n-grams of orders 1 to `order`.

    Args:
        corpus: the corpus.
        order: length of the longest n-grams, 1 to 6.
        partitions: number of parts; default: spark.sql.shuffle.partitions. The counts do not
            depend on it.

    Returns:
        The counts, persisted on the cluster until they are released.

    Raises:
        ValueError, OSError, FormatError, ImportError: bad input, or an executor without a
            required package; the message says where.
    """
    if not 1 <= order <= 6:
        raise ValueError(f"order is {order}; expected 1..6")
    num_parts = partitions if partitions is not None else num_shuffle_partitions(corpus.frame)
    if num_parts < 1:
        raise ValueError(f"partitions is {num_parts}; expected 1 or more")
    runs = corpus.frame.mapInArrow(guarded(_Count(corpus, order, num_parts)), _RUNS)
    merged = move_to(runs, num_parts, "part").mapInArrow(guarded(_merge), _RUNS).persist()
    with clear_errors():
        merged.count()
    return SparkCounts(merged, corpus.vocabulary, order, num_parts)


class _Count:
    """For mapInArrow: counts text into runs for each part."""

    def __init__(self, corpus: SparkCorpus, order: int, num_parts: int) -> None:
        # The frame itself stays on the driver.
        self._corpus = SparkCorpus(**{**corpus.__dict__, "frame": None})
        self._order, self._num_parts = order, num_parts

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        ids: list[Int32Array] = []
        offsets: list[Int64Array] = []
        size = 0
        for some_ids, some_offsets in read_sequences(self._corpus, batches):
            ids.append(some_ids)
            offsets.append(some_offsets[1:] + size)
            size += len(some_ids)
            if size >= _TOKENS_AT_ONCE:
                yield self._count(ids, offsets)
                ids, offsets, size = [], [], 0
        if offsets:
            yield self._count(ids, offsets)

    def _count(self, ids: list[Int32Array], offsets: list[Int64Array]) -> Any:
        bounds = np.concatenate([np.zeros(1, np.int64), *offsets])
        runs = _core.count_into_runs(
            self._corpus.vocabulary.core,
            np.concatenate(ids),
            bounds,
            self._order,
            self._num_parts,
            1,
        )
        parts = [part for part, run in enumerate(runs) if run]
        num_sequences = [0] * len(parts)
        if parts:
            num_sequences[0] = len(bounds) - 1
        return _run_batch(parts, [runs[part] for part in parts], num_sequences)


def _merge(batches: Iterator[Any]) -> Iterator[Any]:
    runs: dict[int, list[bytes]] = defaultdict(list)
    num_sequences: dict[int, int] = defaultdict(int)
    for batch in batches:
        for part, run, count in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            runs[part].append(run)
            num_sequences[part] += count
    for part in sorted(runs):
        merged = _core.merge_runs(runs.pop(part))
        yield _run_batch([part], [merged], [num_sequences[part]])


def _run_batch(parts: list[int], runs: list[bytes], num_sequences: list[int]) -> Any:
    pa = require("pyarrow", "lattice-bpd-spark")
    columns = [
        pa.array(parts, pa.int32()),
        pa.array(runs, pa.binary()),
        pa.array(num_sequences, pa.int64()),
    ]
    return pa.record_batch(columns, names=["part", "run", "num_sequences"])


class _Summarize:
    """For mapInArrow: the nonzero contributions of a part to the Summary."""

    def __init__(self, min_counts: list[int]) -> None:
        self._min_counts = min_counts

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for run in batch.column("run"):
                n, *symbols = _core.summarize_runs([run.as_py()], self._min_counts)
                yield _summary_batch(0, symbols)
                for level in range(1, len(n)):
                    yield _summary_batch(level, [np.array(n[level], np.uint64)])
            total = np.array([sum(batch.column("num_sequences").to_pylist())], np.uint64)
            yield _summary_batch(_SEQUENCES, [total])


def _summary_batch(level: int, columns: list[UInt64Array]) -> Any:
    pa = require("pyarrow", "lattice-bpd-spark")
    indices = np.flatnonzero(np.logical_or.reduce([column != 0 for column in columns]))
    arrays = [pa.array(np.full(len(indices), level, np.int32)), pa.array(indices.astype(np.int32))]
    for i in range(3):
        values = columns[i][indices] if i < len(columns) else np.zeros(len(indices))
        arrays.append(pa.array(values.astype(np.int64)))
    return pa.record_batch(arrays, names=["level", "index", "count", "context_count", "num_after"])


def _to_summary(table: Any, vocabulary: _core.Vocabulary, order: int) -> Summary:
    level, index, *values = (
        np.asarray(table.column(i).to_numpy(), np.int64) for i in range(table.num_columns)
    )
    symbols = np.zeros((3, vocabulary.num_symbols), np.int64)
    for row, value in zip(symbols, values, strict=True):
        row[index[level == 0]] = value[level == 0]
    n = np.zeros((order, 34), np.int64)
    above = level > 0
    n[level[above], index[above]] = values[0][above]
    num_sequences = int(values[0][level == _SEQUENCES].sum())
    # The core counts starts of n-grams; <s> starts each sequence and </s> none.
    symbols[0, vocabulary.bos] -= num_sequences
    symbols[0, vocabulary.eos] += num_sequences
    if symbols[0].sum() <= num_sequences:
        raise ValueError(
            f"n-gram counting: the corpus has no text: {num_sequences} sequences without a token; "
            "expected at least one token"
        )
    n[0] = count_counts(symbols[0])
    counts, context_counts = symbols[:2].astype(np.uint64)
    return Summary(num_sequences, counts, context_counts, symbols[2], n.astype(np.uint64))


def count_counts(counts: npt.NDArray[Any]) -> Int64Array:
    """(34,): the number of counts that are 0 (not set), 1, 2, .. 33."""
    histogram = np.bincount(counts[(counts > 0) & (counts < 34)].astype(np.int64), minlength=34)
    return histogram.astype(np.int64)
