"""Streaming readers of text (plain, .gz, .zst, .jsonl, standard input) and of ids (.npy, .bin).

Errors name the file and the line. A .bin file has raw uint16 or uint32.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from lattice_bpd._core import FormatError
from lattice_bpd.text_input import (
    CSV_TO_JSONL,
    JSON_TO_JSONL,
    STANDARD_INPUT,
    Meter,
    decode_text,
    fill_command,
    name_input,
    parse_json,
    read_chunks,
)

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


def read_pieces(
    file: str, boundaries: Boundaries, field: str = "text", meter: Meter | None = None
) -> Iterator[Piece]:
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
    first = next(blocks, ("", Location(file, 1)))
    blocks = itertools.chain([first], blocks)
    has_lines = _has_json_lines(file, first[0])
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


def _decode_blocks(file: str, meter: Meter | None) -> Iterator[tuple[str, Location]]:
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
