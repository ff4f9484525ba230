"""A corpus as files and a tokenizer: read, encoded and handed on batch by batch."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lattice_bpd._core import FormatError
from lattice_bpd.token_ids import Int32Array, Int64Array
from lattice_bpd.train.text.encoders import Encoder, UnknownWordError, load_encoder
from lattice_bpd.train.text.file_bytes import STANDARD_INPUT, Meter
from lattice_bpd.train.text.id_files import is_id_file, read_ids
from lattice_bpd.train.text.text_files import Boundaries, Piece, read_pieces

StrPath = str | os.PathLike[str]

_CHARACTERS_AT_ONCE = 1 << 20
_TEXT_SUFFIXES = (".txt", ".text", ".md", ".jsonl", ".ndjson")
_SUFFIXES = (
    *(suffix + more for suffix in _TEXT_SUFFIXES for more in ("", ".gz", ".zst")),
    *(".npy", ".bin"),
)


class TokenBatch(NamedTuple):
    """Token ids of some sequences of a corpus.

    Attributes:
        token_ids: (N,) int32.
        offsets: (number of sequences + 1,) int64, from 0 to N.
        continues: whether the first sequence began in the batch before.
        goes_on: whether the last sequence goes on in the next batch.
        source: the file; None on all but its last batch.
    """

    token_ids: Int32Array
    offsets: Int64Array
    continues: bool
    goes_on: bool
    source: str | None


@dataclass
class Corpus:
    """What to count.

    Attributes:
        inputs: files and folders, or "-" for standard input. Text: any name, .gz and .zst are
            decompressed, .jsonl has an object on each line. Token ids: .npy and .bin. From
            folders, also below them: .txt, .text, .md, .jsonl, .ndjson (.gz, .zst), .npy, .bin.
        tokenizer: file of a tokenizer (load_encoder tells the kinds); token ids need none.
        merges: file of the merges of a GPT-2 style vocab.json.
        vocab_size: V; default: the tokenizer's.
        boundaries: what <s> and </s> enclose: a line, a paragraph or a document of text.
        field: the .jsonl field with the text.
        bos_id: token id that is ``<s>``, likewise eos_id and unk_id. eos_id also ends the
            sequences in files of token ids.
        eos_id: see bos_id.
        unk_id: see bos_id.
        id_type: "uint16" or "uint32", for .bin; default: the smallest that vocab_size fits.
        threads: for SentencePiece; 0 for every core.
    """

    inputs: Sequence[StrPath]
    tokenizer: StrPath | None = None
    merges: StrPath | None = None
    vocab_size: int | None = None
    boundaries: Boundaries = "document"
    field: str = "text"
    bos_id: int | None = None
    eos_id: int | None = None
    unk_id: int | None = None
    id_type: str | None = None
    threads: int = 0

    def __post_init__(self) -> None:
        """Finds the files and loads the tokenizer.

        Raises:
            OSError: a file is missing.
            ValueError: no files, a vocabulary that is too small for the tokenizer, or not told.
        """
        if self.boundaries not in ("line", "paragraph", "document"):
            raise ValueError(
                f"boundaries is {self.boundaries!r}; expected line, paragraph or document"
            )
        self.meter = Meter()
        self.files = _find_files([os.fspath(name) for name in self.inputs])
        self.encoder: Encoder | None = None
        if self.tokenizer is not None:
            merges = os.fspath(self.merges) if self.merges is not None else None
            tokenizer = os.fspath(self.tokenizer)
            self.encoder = load_encoder(tokenizer, merges=merges, threads=self.threads)
        self.size_of_vocabulary = _vocab_size(self.vocab_size, self.encoder, self.files)

    @property
    def total_bytes(self) -> int | None:
        """The size of all files; None with standard input among them."""
        if STANDARD_INPUT in self.files:
            return None
        return sum(Path(file).stat().st_size for file in self.files)

    def batches(self, skip: Sequence[str] = ()) -> Iterator[TokenBatch]:
        """Reads all files but those in `skip`, one after the other.

        Raises:
            OSError: a file cannot be read.
            FormatError: what is in it is not what its name promises; the message has the place.
            ValueError: it is empty, or has a word that the vocabulary lacks.
        """
        for file in self.files:
            before = self.meter.bytes_read
            if file not in skip:
                yield from self._read(file)
            if file != STANDARD_INPUT:
                self.meter.bytes_read = before + Path(file).stat().st_size

    def _read(self, file: str) -> Iterator[TokenBatch]:
        continues = False
        if is_id_file(file):
            before = self.meter.bytes_read
            for ids in read_ids(file, self.size_of_vocabulary, self.eos_id, self.id_type):
                self.meter.bytes_read = before + ids.bytes_read
                yield TokenBatch(ids.token_ids, ids.offsets, continues, ids.goes_on, None)
                continues = ids.goes_on
        else:
            pieces = read_pieces(file, self.boundaries, self.field, self.meter)
            for group in group_pieces(pieces):
                goes_on = not group[-1].ends
                yield TokenBatch(*self._encode(group), continues, goes_on, None)
                continues = goes_on
        nothing = np.zeros(0, np.int32), np.zeros(1, np.int64)
        yield TokenBatch(*nothing, False, False, file)

    def _encode(self, pieces: Sequence[Piece]) -> tuple[Int32Array, Int64Array]:
        assert self.encoder is not None  # _vocab_size has made sure
        return encode_pieces(self.encoder, pieces, self.size_of_vocabulary)


def encode_pieces(
    encoder: Encoder, pieces: Sequence[Piece], vocab_size: int
) -> tuple[Int32Array, Int64Array]:
    """(N,) token ids and the (number of sequences + 1,) offsets of their sequences.

    Args:
        encoder: the tokenizer.
        pieces: one or more; the last is taken to end a sequence, even if it does not.
        vocab_size: V.

    Raises:
        ValueError: a word that the vocabulary lacks.
        FormatError: a token id from vocab_size on.
    """
    try:
        found = encoder.encode([piece.text for piece in pieces])
    except UnknownWordError as error:
        place = pieces[error.text_index].place
        raise ValueError(
            f"{place.file}, line {place.line + error.line}: the word {error.word!r} is not in "
            f"{encoder.name}; add it, or <unk> for all such words"
        ) from error
    token_ids = np.concatenate(found)
    if len(token_ids) and int(token_ids.max()) >= vocab_size:
        raise FormatError(
            f"{encoder.name}: gives token id {int(token_ids.max())} for text of "
            f"{pieces[0].place}; expected ids below vocab_size {vocab_size}"
        )
    ends = np.cumsum([len(ids) for ids in found])
    keep = np.array([piece.ends for piece in pieces])
    keep[-1] = True
    return token_ids, np.concatenate([[0], ends[keep]]).astype(np.int64)


def group_pieces(
    pieces: Iterator[Piece], *, whole_sequences: bool = False
) -> Iterator[list[Piece]]:
    """Lists of about a million characters, which may have to end where a sequence does."""
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        group.append(piece)
        size += len(piece.text) + 1
        if size >= _CHARACTERS_AT_ONCE and (piece.ends or not whole_sequences):
            yield group
            group, size = [], 0
    if group:
        yield group


def _find_files(inputs: Sequence[str]) -> list[str]:
    files: list[str] = []
    for name in inputs:
        path = Path(name)
        if name == STANDARD_INPUT or path.is_file() or path.is_fifo():
            files.append(name)
        elif path.is_dir():
            found = sorted(str(file) for file in path.rglob("*") if file.is_file())
            files.extend(_of_known_kind(name, found))
        else:
            raise FileNotFoundError(f"{name}: no such file or folder")
    if not files:
        raise ValueError("no input; expected files, folders, or - for standard input")
    repeated = [file for file, count in Counter(files).items() if count > 1]
    if repeated:
        raise ValueError(f"{repeated[0]}: named more than once; its text would count twice")
    return files


def _of_known_kind(folder: str, files: Sequence[str]) -> list[str]:
    found = [file for file in files if file.endswith(_SUFFIXES)]
    if not found:
        raise FileNotFoundError(f"{folder}: no file in it ends in one of {', '.join(_SUFFIXES)}")
    return found


def _vocab_size(stated: int | None, encoder: Encoder | None, files: Sequence[str]) -> int:
    text = [file for file in files if not is_id_file(file)]
    if encoder is None and text:
        raise ValueError(f"{text[0]}: text needs a tokenizer (tokenizer, --tokenizer)")
    if encoder is None and stated is None:
        raise ValueError("token ids need the size of the vocabulary (vocab_size, --vocab-size)")
    if encoder is not None and stated is not None and encoder.vocab_size > stated:
        raise ValueError(
            f"{encoder.name}: the tokenizer has {encoder.vocab_size} token ids, vocab_size is "
            f"{stated}; expected at least as many: is it the tokenizer of the model?"
        )
    return stated if stated is not None else encoder.vocab_size if encoder is not None else 0
