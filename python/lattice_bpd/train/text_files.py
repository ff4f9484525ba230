"""Streaming readers of text (plain, .gz, .zst, .jsonl, standard input) and of ids (.npy, .bin).

Errors name the file and the line. A .bin file has raw uint16 or uint32.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple
from zipfile import BadZipFile

import numpy as np

from lattice_bpd._core import FormatError
from lattice_bpd.text_input import (
    CSV_TO_JSONL,
    JSON_TO_JSONL,
    NPY_MAGIC,
    STANDARD_INPUT,
    Meter,
    decode_text,
    fill_command,
    name_input,
    parse_json,
    read_chunks,
    refuse_foreign,
)
from lattice_bpd.token_ids import Int32Array, Int64Array

Boundaries = Literal["line", "paragraph", "document"]

_SEPARATORS: dict[str, str | None] = {"line": "\n", "paragraph": "\n\n", "document": None}
# Longer lines, paragraphs and documents are tokenized in parts of this many characters.
_PART_CHARACTERS = 1 << 20


class Location(NamedTuple):
    """The position at which a piece of text starts; lines count from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


class Piece(NamedTuple):
    """Text that is tokenized at once; `ends`: whether its sequence ends with it."""

    text: str
    ends: bool
    location: Location


def read_pieces(file: str, boundaries: Boundaries, field: str, meter: Meter) -> Iterator[Piece]:
    """The sequences of a text file, long ones in several pieces.

    Lines and paragraphs of white space are skipped. A sequence above 2**20 characters is split
    before a line end or a space, where byte-level BPE and SentencePiece tokenize the parts as they
    would the whole.

    Args:
        file: a path, or "-" for standard input; gzip and zstd are decompressed. .jsonl has a JSON
            object on each line; so may .json and standard input.
        boundaries: the unit of a sequence: a line, a paragraph (separated by empty lines), or a
            document, which is a whole text file or the text of one .jsonl object.
        field: the .jsonl field with the text.
        meter: counts the bytes read.

    Raises:
        OSError: the file cannot be read.
        FormatError: damaged compression, bytes that are not UTF-8, or lines that are not JSON
            with that field; the message has file, line and byte. Or a file of another format, also
            .csv and a JSON array; the message has the command that converts it.
        ValueError: the file is empty.
        ImportError: zstandard is not installed (extra ``train``).
    """
    blocks = _decode_blocks(file, meter)
    first = next(blocks, None)
    if first is not None:
        blocks = itertools.chain([first], blocks)
    has_lines = _has_json_lines(file, "" if first is None else first[0])
    empty = True
    pieces = _read_jsonl(blocks, boundaries, field) if has_lines else _split(blocks, boundaries)
    for piece in pieces:
        empty = empty and not piece.text.strip()
        yield piece
    if empty:
        raise ValueError(f"{file}: no text in the file; expected some, or leave the file out")


def _has_json_lines(file: str, start: str) -> bool:
    """Whether a file has JSON lines, by its name, or of .json and standard input by its start.

    Raises:
        FormatError: CSV, or JSON of another structure.
    """
    match = re.search(r"\.(jsonl|ndjson|json|csv|tsv)(\.gz|\.zst)?$", file, re.IGNORECASE)
    kind = "" if match is None else match[1].lower()
    if kind in ("csv", "tsv"):
        raise FormatError(
            f"{file}: {kind.upper()} is not read as text; expected text or JSON lines; convert it: "
            + fill_command(CSV_TO_JSONL, file, dialect="excel" if kind == "csv" else "excel-tab")
        )
    if kind in ("jsonl", "ndjson"):
        return True
    if kind != "json" and file != STANDARD_INPUT:
        return False
    start = start.lstrip()
    line = start.split("\n", 1)[0]
    is_cut = line == start  # a line may be longer than a block
    if re.match(r"\{\s*\"", line) and (is_cut or _is_json(line)):
        return True
    if (start and kind == "json") or re.match(r"\[\s*\{\s*\"", start):
        raise FormatError(
            f"{name_input(file)}: one JSON value; expected an object on each line, as in .jsonl; "
            f"convert a list of objects: {fill_command(JSON_TO_JSONL, file)}; or name the file "
            ".txt to take the JSON itself as text"
        )
    return False


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _decode_blocks(file: str, meter: Meter) -> Iterator[tuple[str, Location]]:
    """The text in blocks that end before white space, with their locations."""
    location = Location(name_input(file), 1)
    byte = 0
    held = b""
    for chunk in itertools.chain(read_chunks(file, meter), [b""]):
        held += chunk
        cut = max(held.rfind(b"\n"), held.rfind(b" ")) if chunk else len(held)
        if cut > 0:
            yield decode_text(held[:cut], location.file, byte, location.line), location
            location = Location(location.file, location.line + held.count(b"\n", 0, cut))
            byte += cut
            held = held[cut:]


def _split(blocks: Iterator[tuple[str, Location]], boundaries: Boundaries) -> Iterator[Piece]:
    """Splits a stream of blocks into sequences."""
    separator = _SEPARATORS[boundaries]
    held, begun = "", False  # text of the sequence not yet yielded; whether a part was
    location = Location("", 1)
    for block, start in blocks:
        location = location if held else start
        held += block
        if separator:
            held = held.replace("\r\n", "\n")
            *whole, held = held.split(separator)
            for text in whole:
                if begun or text.strip():
                    yield Piece(text, True, location)
                begun = False
                location = Location(
                    location.file, location.line + text.count("\n") + len(separator)
                )
        while (not separator and held) or len(held) > _PART_CHARACTERS:
            part, held = _take_part(held)
            yield Piece(part, False, location)
            location = Location(location.file, location.line + part.count("\n"))
            begun = True
    if begun or held.strip():
        yield Piece(held, True, location)


def _take_part(text: str) -> tuple[str, str]:
    """The first part of a long text and the remainder, split before white space if possible."""
    if len(text) <= _PART_CHARACTERS:
        return text, ""
    cut = max(text.rfind("\n", 1, _PART_CHARACTERS), text.rfind(" ", 1, _PART_CHARACTERS))
    cut = cut if cut > 0 else _PART_CHARACTERS
    return text[:cut], text[cut:]


def _read_jsonl(
    blocks: Iterator[tuple[str, Location]], boundaries: Boundaries, field: str
) -> Iterator[Piece]:
    parts: list[str] = []
    for piece in _split(blocks, "line"):
        parts.append(piece.text)
        if piece.ends:
            text = json_field("".join(parts), field, piece.location)
            parts = []
            yield from split_text(text, boundaries, piece.location)


def split_text(text: str, boundaries: Boundaries, location: Location) -> Iterator[Piece]:
    """The sequences of a string, split as read_pieces splits a file.

    The last piece always ends its sequence.
    """
    if boundaries != "document" or len(text) > _PART_CHARACTERS:
        yield from _split(iter([(text, location)]), boundaries)
    elif text.strip():
        yield Piece(text, True, location)


def json_field(line: str, field: str, location: Location) -> str:
    """The text in a field of a JSON object.

    Raises:
        FormatError: the line is not a JSON object, or has no text there.
    """
    record = parse_json(line, str(location), "an object on each line")
    if not isinstance(record, dict):
        raise FormatError(f"{location}: a JSON {type(record).__name__}; expected an object")
    text = record.get(field)
    if not isinstance(text, str):
        fields = ", ".join(sorted(key for key, value in record.items() if isinstance(value, str)))
        raise FormatError(
            f"{location}: no text in field {field!r}; its text fields are: {fields or 'none'}; "
            "give one of them (field, --field)"
        )
    return text


_IDS_AT_ONCE = 1 << 20


class IdBatch(NamedTuple):
    """Token ids of some sequences, the last of which may continue in the next batch.

    Attributes:
        token_ids: (N,) int32.
        offsets: (number of sequences + 1,) int64, from 0 to N.
        continues_next: whether the last sequence does.
        bytes_read: bytes of the file read so far.
    """

    token_ids: Int32Array
    offsets: Int64Array
    continues_next: bool
    bytes_read: int


def is_id_file(file: str) -> bool:
    """Whether the file name is that of a file of token ids."""
    return file.endswith((".npy", ".bin"))


def read_ids(
    file: str, vocab_size: int, eos_id: int | None, id_type: str | None
) -> Iterator[IdBatch]:
    """The sequences of a file of token ids, a million ids at a time.

    Args:
        file: a .npy file with an integer array: (T,) is one text, (N, T) are N sequences; or a
            .bin file of little-endian integers without a header, one text. A text is split into
            sequences after each eos_id.
        vocab_size: V; ids lie in 0..V-1.
        eos_id: the token id that ends a sequence; None: a text is one sequence.
        id_type: "uint16" or "uint32", of a .bin file; None: uint16 up to V = 65536.

    Raises:
        OSError: it cannot be read.
        FormatError: it holds anything else; the message says where.
        ValueError: it is empty.
    """
    ids = map_npy(file) if file.endswith(".npy") else _map_bin(file, vocab_size, id_type)
    if ids.size == 0:
        raise ValueError(f"{file}: no token ids in the file; expected some, or leave the file out")
    if ids.ndim == 2:
        yield from _read_rows(file, ids, vocab_size)
        return
    for begin in range(0, len(ids), _IDS_AT_ONCE):
        part = _check(file, ids[begin : begin + _IDS_AT_ONCE], begin, vocab_size)
        last = begin + len(part) == len(ids)
        ends = np.flatnonzero(part == eos_id) + 1 if eos_id is not None else np.zeros(0, np.int64)
        at_end = len(ends) > 0 and int(ends[-1]) == len(part)
        tail = [] if at_end else [len(part)]
        offsets = np.concatenate([[0], ends, tail]).astype(np.int64)
        done = (begin + len(part)) * ids.itemsize
        yield IdBatch(part, offsets, not last and not at_end, done)


def _read_rows(file: str, ids: Any, vocab_size: int) -> Iterator[IdBatch]:
    rows, length = ids.shape
    step = max(1, _IDS_AT_ONCE // length)
    for row in range(0, rows, step):
        part = ids[row : row + step]
        flat = _check(file, part.reshape(-1), row * length, vocab_size)
        offsets = np.arange(len(part) + 1, dtype=np.int64) * length
        yield IdBatch(flat, offsets, False, (row + len(part)) * length * ids.itemsize)


def map_npy(file: str) -> Any:
    """The integers of a .npy file, of shape (T,) or (N, T), mapped.

    Raises:
        OSError: it cannot be read.
        FormatError: it holds anything else.
    """
    try:
        ids = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, BadZipFile) as error:
        refuse_foreign(file, expected="a .npy file of integers", magic=NPY_MAGIC)
        raise FormatError(f"{file}: not a .npy file of numbers, or truncated ({error})") from error
    if not isinstance(ids, np.ndarray):
        raise FormatError(
            f"{file}: an archive of arrays; expected a .npy file with one array: save that array "
            "with numpy.save"
        )
    if ids.dtype.kind not in "iu" or ids.ndim not in (1, 2):
        raise FormatError(
            f"{file}: an array of shape {ids.shape} and type {ids.dtype}; expected integers of "
            "shape (T,) or (N, T)"
        )
    return ids


def _map_bin(file: str, vocab_size: int, id_type: str | None) -> Any:
    if id_type not in (None, "uint16", "uint32"):
        raise ValueError(f"id_type is {id_type!r}; expected uint16 or uint32")
    refuse_foreign(file, expected="raw token ids without a header", least=4)
    kind = np.dtype(id_type or ("uint16" if vocab_size <= 1 << 16 else "uint32")).newbyteorder("<")
    size = Path(file).stat().st_size
    if size % kind.itemsize != 0:
        raise FormatError(
            f"{file}: {size} bytes are not a whole number of {kind.name} ids; expected a multiple "
            f"of {kind.itemsize}: give the right type (id_type, --id-type), unless the file is "
            "truncated"
        )
    return np.memmap(file, dtype=kind, mode="r") if size else np.zeros(0, kind)


def _check(file: str, part: Any, begin: int, vocab_size: int) -> Int32Array:
    smallest, largest = int(part.min()), int(part.max())
    if smallest < 0 or largest >= vocab_size:
        bad = smallest if smallest < 0 else largest
        index = begin + int(np.flatnonzero(part == bad)[0])
        raise FormatError(
            f"{file}: token id {bad} at index {index}; expected 0..{vocab_size - 1}: raise "
            "vocab_size (--vocab-size), or the ids are of another type or tokenizer"
        )
    return np.ascontiguousarray(part, dtype=np.int32)
