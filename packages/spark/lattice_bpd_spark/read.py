"""Corpora on clusters: Parquet, JSON lines or text as DataFrames."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from lattice_bpd import _core
from lattice_bpd._core import FormatError
from lattice_bpd.atomic_files import temporary_folder
from lattice_bpd.token_ids import Int32Array, Int64Array
from lattice_bpd.train.corpus import Encoder, encode_pieces, group_pieces, load_encoder
from lattice_bpd.train.text_files import Boundaries, Location, Piece, json_field, split_text
from lattice_bpd_spark.session import clear_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FORMATS = ("parquet", "json", "text")
_LINE_ENDS = {"line": "\n", "paragraph": "\n\n"}


@dataclass(frozen=True)
class SparkCorpus:
    """A corpus on a cluster, made by :func:`read_corpus`.

    Attributes:
        frame: one column: text, JSON text, or an array of token ids for each sequence.
        vocabulary: token ids and special symbols.
        name: name for error messages.
        tokenizer: for text; None for token ids.
        boundaries: unit of text between <s> and </s>.
        field: field of JSON lines; None if the column is the text itself.
    """

    frame: DataFrame
    vocabulary: Vocabulary
    name: str
    tokenizer: TokenizerFile | None
    boundaries: Boundaries
    field: str | None


def read_corpus(
    spark: SparkSession,
    inputs: str | Sequence[str],
    *,
    format: str | None = None,  # noqa: A002  Spark's term
    tokenizer: str | None = None,
    vocab_size: int | None = None,
    boundaries: Boundaries = "document",
    field: str = "text",
    bos_id: int | None = None,
    eos_id: int | None = None,
    unk_id: int | None = None,
) -> SparkCorpus:
    """Describes a corpus; executors read and tokenize it when it is counted.

    Args:
        spark: the session.
        inputs: paths that the cluster can read (also hdfs://, s3a://), with wildcards, or folders.
        format: "parquet", "json" (an object on each line) or "text"; default: by the names.
        tokenizer: file of a tokenizer on the driver, see load_encoder, or the folder of a
            tokenizer.json; it is sent to the executors. Not needed for token ids.
        vocab_size: V; default: that of the tokenizer.
        boundaries: unit of text between <s> and </s>: "line", "paragraph" or "document", which is
            a Parquet row, a JSON object or a text file.
        field: Parquet column or JSON field: text, or in Parquet an array of token ids, which is
            one sequence.
        bos_id: token id that is ``<s>``, likewise eos_id and unk_id.
        eos_id: see bos_id.
        unk_id: see bos_id.

    Raises:
        OSError: no such files.
        ValueError: a missing column or one without text (the message has the columns), or
            inconsistent options.
    """
    paths = [inputs] if isinstance(inputs, str) else [str(name) for name in inputs]
    if boundaries not in get_args(Boundaries):
        raise ValueError(f"boundaries is {boundaries!r}; expected line, paragraph or document")
    kind = format if format is not None else _format_of(paths)
    file, own_size = read_tokenizer(tokenizer) if tokenizer is not None else (None, None)
    with clear_errors():
        frame, is_text = _open(spark, paths, kind, boundaries, field)
    size = _vocab_size(paths[0], is_text, vocab_size, own_size)
    vocabulary = Vocabulary(size, bos_id, eos_id, unk_id)
    _ = vocabulary.core  # raises for numbers out of range
    return SparkCorpus(
        frame,
        vocabulary,
        ", ".join(paths),
        file if is_text else None,
        boundaries,
        field if kind == "json" else None,
    )


def read_sequences(
    corpus: SparkCorpus, batches: Iterator[Any]
) -> Iterator[tuple[Int32Array, Int64Array]]:
    """On an executor: (N,) token ids and (sequences + 1,) offsets, batch by batch.

    Raises:
        ValueError, FormatError: bad input.
    """
    if corpus.tokenizer is None:
        for batch in batches:
            yield _ids_of(corpus, batch.column(0))
        return
    encoder = load_here(corpus.tokenizer)
    for group in group_pieces(_pieces(corpus, batches), whole_sequences=True):
        yield encode_pieces(encoder, group, corpus.vocabulary.vocab_size)


def _format_of(paths: Sequence[str]) -> str:
    if not paths:
        raise ValueError("no input; expected paths of Parquet, JSON or text files")
    name = paths[0].rstrip("/*")
    if re.search(r"\.parquet$", name):
        return "parquet"
    if re.search(r"\.(json|jsonl|ndjson)(\.(gz|zst|bz2))?$", name):
        return "json"
    if re.search(r"\.(txt|text|md)(\.(gz|zst|bz2))?$", name):
        return "text"
    raise ValueError(
        f"{paths[0]}: unknown file type; expected format (--format) parquet, json or text"
    )


def _open(
    spark: SparkSession, paths: list[str], kind: str, boundaries: Boundaries, field: str
) -> tuple[DataFrame, bool]:
    """The column to read, and whether it is text."""
    if kind not in _FORMATS:
        raise ValueError(f"format is {kind!r}; expected {', '.join(_FORMATS)}")
    reader = spark.read.option("recursiveFileLookup", "true")
    if kind == "parquet":
        return _column(reader.parquet(*paths), paths[0], field)
    separator = "\n" if kind == "json" else _LINE_ENDS.get(boundaries)
    if separator is None:
        return reader.text(paths, wholetext=True), True
    return reader.text(paths, lineSep=separator), True


def _column(frame: DataFrame, name: str, field: str) -> tuple[DataFrame, bool]:
    types = dict(frame.dtypes)
    if field not in types:
        raise ValueError(
            f"{name}: no column {field!r}; its columns are: {', '.join(types) or 'none'}; give one "
            "of them (field, --field)"
        )
    if types[field] not in ("string", "array<int>", "array<bigint>", "array<smallint>"):
        raise ValueError(
            f"{name}: column {field!r} is of type {types[field]}; expected string, or an array of "
            "int for token ids"
        )
    return frame.select(f"`{field}`"), types[field] == "string"


def _vocab_size(name: str, is_text: bool, stated: int | None, own: int | None) -> int:
    if is_text and own is None:
        raise ValueError(
            f"{name}: text needs a tokenizer; give that of the model, --tokenizer "
            "MODEL/tokenizer.json (tokenizer= in Python)"
        )
    if own is None and stated is None:
        raise ValueError("token ids need the size of the vocabulary (vocab_size, --vocab-size)")
    if own is not None and stated is not None and own > stated:
        raise ValueError(
            f"the tokenizer has {own} token ids, vocab_size is {stated}; expected at least as many"
        )
    return stated if stated is not None else own or 0


def _pieces(corpus: SparkCorpus, batches: Iterator[Any]) -> Iterator[Piece]:
    location = Location(f"{corpus.name} (a row)", 1)
    for batch in batches:
        for text in _texts(corpus, batch.column(0)):
            if corpus.field is not None:
                if text.strip():
                    content = json_field(text, corpus.field, location)
                    yield from split_text(content, corpus.boundaries, location)
            else:
                yield from split_text(text, corpus.boundaries, location)


def _texts(corpus: SparkCorpus, column: Any) -> Iterator[str]:
    if column.null_count:
        raise FormatError(f"{corpus.name}: a row without text (null); filter such rows out first")
    at_line_ends = corpus.field is None and corpus.boundaries != "document"
    try:
        for value in column:
            text: str = value.as_py().removeprefix("\ufeff")  # the BOM of a file
            if "\0" in text:
                raise FormatError(
                    f"{corpus.name}: text with NUL at character {text.index(chr(0))} of a row; "
                    "expected UTF-8; convert the files, for example with iconv -f UTF-16 -t utf-8"
                )
            yield text[:-1] if at_line_ends and text.endswith("\r") else text
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{corpus.name}: text that is not UTF-8 ({error.reason}); convert the files, for "
            "example with iconv -f latin1 -t utf-8"
        ) from error


def _ids_of(corpus: SparkCorpus, column: Any) -> tuple[Int32Array, Int64Array]:
    flat = column.flatten()
    if column.null_count or flat.null_count:
        raise FormatError(f"{corpus.name}: a row without token ids (null); filter such rows out")
    ids = flat.to_numpy(zero_copy_only=False)
    vocab_size = corpus.vocabulary.vocab_size
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    if len(outside):
        raise ValueError(
            f"{corpus.name}: token id {outside[0]} is outside the vocabulary; expected "
            f"0..{vocab_size - 1}: raise vocab_size, or tokenize with the model's own tokenizer"
        )
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return ids.astype(np.int32), offsets.astype(np.int64)


@dataclass(frozen=True)
class TokenizerFile:
    """The file of a tokenizer.

    Attributes:
        path: where it was read.
        data: its content.
    """

    path: str
    data: bytes


def read_tokenizer(tokenizer: str) -> tuple[TokenizerFile, int]:
    """Reads the file of a tokenizer; also returns its number of token ids.

    Raises:
        OSError, FormatError, ValueError, ImportError: as load_encoder does for a file.
    """
    path = Path(tokenizer)
    path = path / "tokenizer.json" if path.is_dir() else path
    vocab_size = load_encoder(str(path), threads=1).vocab_size
    return TokenizerFile(str(path), path.read_bytes()), vocab_size


@functools.lru_cache(maxsize=1)
def load_here(tokenizer: TokenizerFile) -> Encoder:
    """Loads the tokenizer once per worker, with one thread since each core has a worker.

    Raises:
        OSError: the worker cannot write a temporary file.
        ImportError: the tokenizer's library is not installed.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        with temporary_folder() as folder:
            copy = folder / Path(tokenizer.path).name
            copy.write_bytes(tokenizer.data)
            encoder = load_encoder(str(copy), threads=1)
    except OSError as error:
        raise OSError(
            f"{tokenizer.path}: the tokenizer cannot be written on an executor ({error}); free "
            "space in its temporary folder (TMPDIR)"
        ) from error
    encoder.name = tokenizer.path
    return encoder


@dataclass(frozen=True)
class Vocabulary:
    """The number of token ids, and the ids of special symbols, if any.

    Attributes:
        vocab_size: V.
        bos_id: token id that is ``<s>``, if any; likewise eos_id and unk_id.
        eos_id: see bos_id.
        unk_id: see bos_id.
    """

    vocab_size: int
    bos_id: int | None = None
    eos_id: int | None = None
    unk_id: int | None = None

    @functools.cached_property
    def core(self) -> _core.Vocabulary:
        """The core's vocabulary.

        Raises:
            ValueError: numbers out of range.
        """
        return _core.Vocabulary(self.vocab_size, self.bos_id, self.eos_id, self.unk_id)

    def __getstate__(self) -> dict[str, int | None]:
        """Everything but the core's vocabulary, which cannot be pickled."""
        state = dict(self.__dict__)
        state.pop("core", None)
        return state
