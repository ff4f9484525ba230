"""Distributed LMs, and their conversion to one file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd._core import FormatError
from lattice_bpd.extensions import require
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd_spark.read import Vocabulary
from lattice_bpd_spark.session import clear_errors, guarded
from lattice_bpd_spark.shuffle import (
    Bucket,
    ContextBuckets,
    by_length,
    map_buckets,
    to_rows,
    to_symbols,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GROUPED = "ngram binary, log_prob float, bucket int"
_FINAL = "ngram binary, log_prob float, backoff float"
_CHUNK = "length int, ngrams binary, log_probs binary, backoffs binary"
_UNIGRAM_LIMIT = -99.0 * 2.302585093


@dataclass(frozen=True)
class SparkLM:
    """An LM whose n-grams of order 2 and above are on the cluster.

    Attributes:
        frame: ``ngram binary, log_prob float, bucket int``, partitioned and sorted by bucket;
            bigrams may be in several buckets. Symbols are 4 bytes each, the high byte first.
        vocabulary: token ids and special symbols.
        unigrams: (S,) float32: ln P of each symbol.
        order: length of the longest n-grams.
        buckets: the partitioning of the frame.
        kept: persisted frames, besides the counts.
    """

    frame: DataFrame
    vocabulary: Vocabulary
    unigrams: npt.NDArray[np.float32]
    order: int
    buckets: ContextBuckets
    kept: tuple[DataFrame, ...] = ()

    @property
    def num_words(self) -> int:
        """Unigrams with a probability of their own."""
        return int((self.unigrams > np.float32(_UNIGRAM_LIMIT)).sum())

    def ngrams(self) -> DataFrame:
        """``ngram binary, log_prob float``, each n-gram once, unordered."""
        return map_buckets(self.frame, _OnlyFirst(self.buckets), "ngram binary, log_prob float")

    def with_backoffs(self) -> DataFrame:
        """``ngram binary, log_prob float, backoff float`` of all n-grams, sorted.

        Includes contexts that are single symbols, without a log_prob. backoff is null for 0.
        """
        functions = require("pyspark.sql.functions", "lattice-bpd-spark")
        both = map_buckets(self.frame, _WithBackoffs(self), _FINAL)
        maxima = [functions.max(name).alias(name) for name in ("log_prob", "backoff")]
        joined = both.groupBy("ngram").agg(*maxima)
        return joined.orderBy(functions.length("ngram"), "ngram")

    def collect(self) -> NGramLM:
        """Assembles the LM on the driver: the n-grams stream in, sorted; the LM is in memory.

        Memory: 16 bytes per n-gram, and 7 to 13 for the finished LM.

        Raises:
            OSError, ValueError, FormatError: an executor failed, or the LM does not fit one file.
        """
        chunks = self.with_backoffs().mapInArrow(guarded(_to_chunks), _CHUNK)
        with clear_errors():
            rows = chunks.toLocalIterator(prefetchPartitions=False)
            return assemble_chunks(self.vocabulary, self.unigrams, rows)

    def release(self) -> None:
        """Frees its persisted frames."""
        for frame in self.kept:
            frame.unpersist()

    def save_parts(self, folder: str) -> None:
        """Writes the sorted n-grams as Parquet, for `assemble` on another machine.

        Args:
            folder: a new folder on a file system that the whole cluster writes to.

        Raises:
            OSError: it exists already, or cannot be written.
        """
        spark = self.frame.sparkSession
        chunks = self.with_backoffs().mapInArrow(guarded(_to_chunks), _CHUNK)
        head = spark.createDataFrame(
            [(json.dumps(self.vocabulary.__getstate__()), bytearray(self.unigrams.tobytes()))],
            "vocabulary string, unigrams binary",
        )
        with clear_errors():
            chunks.write.parquet(f"{folder}/ngrams")
            head.coalesce(1).write.parquet(f"{folder}/head")

    def save(self, path: str | Path) -> NGramLM:
        """Assembles the LM on the driver and writes its file."""
        lm = self.collect()
        lm.save(path)
        return lm


class _OnlyFirst:
    """A bucket's n-grams without the copies of bigrams."""

    def __init__(self, buckets: ContextBuckets) -> None:
        self._buckets = buckets

    def __call__(self, bucket: Bucket) -> Iterator[Any]:
        columns = zip(bucket.symbols, bucket.columns["log_prob"], strict=True)
        for symbols, log_probs in columns:
            if symbols.shape[1] == 2:
                first = self._buckets.is_first(bucket.number, symbols[:, 0])
                yield from to_rows(symbols[first], {"log_prob": log_probs[first]})
            else:
                yield from to_rows(symbols, {"log_prob": log_probs})


class _WithBackoffs:
    """A bucket's n-grams, and rows of its contexts with their backoff weights."""

    def __init__(self, lm: SparkLM) -> None:
        self._vocabulary, self._unigrams, self._buckets = lm.vocabulary, lm.unigrams, lm.buckets

    def __call__(self, bucket: Bucket) -> Iterator[Any]:
        pa = require("pyarrow", "lattice-bpd-spark")
        for batch in _OnlyFirst(self._buckets)(bucket):
            nothing = pa.nulls(len(batch), pa.float32())
            yield pa.record_batch([*batch.columns, nothing], names=["ngram", "log_prob", "backoff"])
        contexts = _core.backoffs_of_rows(
            self._vocabulary.core, self._unigrams, bucket.symbols, bucket.columns["log_prob"]
        )
        for symbols, backoffs in contexts:
            if symbols.shape[1] == 1:
                first = self._buckets.is_first(bucket.number, symbols[:, 0])
                symbols, backoffs = symbols[first], backoffs[first]
            for batch in to_rows(symbols, {"backoff": backoffs}):
                ngrams, values = batch.columns
                columns = [ngrams, pa.nulls(len(batch), pa.float32()), values]
                yield pa.record_batch(columns, names=["ngram", "log_prob", "backoff"])


def _to_chunks(batches: Iterator[Any]) -> Iterator[Any]:
    """Packs sorted rows into one row of bytes each, which Spark transfers much faster."""
    pa = require("pyarrow", "lattice-bpd-spark")
    for batch in batches:
        for length, part in by_length(batch):
            data = [to_symbols(part.column("ngram")).tobytes()]
            for name in ("log_prob", "backoff"):
                values = part.column(name).fill_null(0.0).to_numpy(zero_copy_only=False)
                data.append(values.astype(np.float32).tobytes())
            columns = [pa.array([length], pa.int32()), *(pa.array([d], pa.binary()) for d in data)]
            names = ["length", "ngrams", "log_probs", "backoffs"]
            yield pa.record_batch(columns, names=names)


def assemble(folder: str | os.PathLike[str]) -> NGramLM:
    """The LM whose n-grams SparkLM.save_parts wrote.

    Memory: 16 bytes per n-gram while it is assembled, and 7 to 13 for the finished LM.

    Raises:
        OSError: a file is missing.
        FormatError: a folder that save_parts did not write or finish.
        ValueError: parts are missing or damaged.
    """
    parquet = require("pyarrow.parquet", "lattice-bpd-spark")
    files = [_parquet_files(Path(folder) / name) for name in ("head", "ngrams")]
    head = parquet.read_table(files[0][0]).to_pylist()[0]
    vocabulary = Vocabulary(**json.loads(head["vocabulary"]))
    unigrams = np.frombuffer(head["unigrams"], np.float32)
    return assemble_chunks(vocabulary, unigrams, _read_chunks(files[1]))


def assemble_chunks(
    vocabulary: Vocabulary, unigrams: npt.NDArray[np.float32], chunks: Iterable[Any]
) -> NGramLM:
    """The LM of sorted chunks: mappings with length, ngrams, log_probs and backoffs, as bytes.

    Raises:
        ValueError: chunks are missing or not sorted.
    """
    assembler = _core.TrieAssembler(vocabulary.core, unigrams)
    for chunk in chunks:
        length = int(chunk["length"])
        symbols = np.frombuffer(chunk["ngrams"], np.uint32)
        log_probs, backoffs = (
            np.frombuffer(chunk[name], np.float32) for name in ("log_probs", "backoffs")
        )
        assembler.add(length, symbols, log_probs, backoffs)
    return NGramLM(assembler.finish())


def _parquet_files(folder: Path) -> list[Path]:
    """The files of a finished Spark write, in order."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; expected what save_parts wrote")
    if not (folder / "_SUCCESS").is_file():
        raise FormatError(f"{folder}: Spark did not finish writing it; train again")
    return sorted(folder.glob("part-*.parquet"))


def _read_chunks(files: Iterable[Path]) -> Iterator[Mapping[str, Any]]:
    parquet = require("pyarrow.parquet", "lattice-bpd-spark")
    for file in files:
        for batch in parquet.ParquetFile(file).iter_batches(batch_size=16):
            yield from batch.to_pylist()
