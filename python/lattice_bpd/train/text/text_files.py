"""Text from files of any size: plain, .gz, .zst, .jsonl, or standard input, in pieces.

A file is read once, front to back, and never held as a whole; errors name the file and the line.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from lattice_bpd._core import FormatError
from lattice_bpd.train.text.file_bytes import STANDARD_INPUT, Meter, read_chunks

Boundaries = Literal["line", "paragraph", "document"]

_SEPARATORS: dict[str, str | None] = {"line": "\n", "paragraph": "\n\n", "document": None}
# Longer lines, paragraphs and documents are encoded in parts of this many characters.
_PART_CHARACTERS = 1 << 20


class Place(NamedTuple):
    """Where a piece of text begins; lines count from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


class Piece(NamedTuple):
    """Text that is encoded at once; `ends` tells whether its sequence ends with it."""

    text: str
    ends: bool
    place: Place


def read_pieces(file: str, boundaries: Boundaries, field: str, meter: Meter) -> Iterator[Piece]:
    """The sequences of a text file, long ones in several pieces.

    Lines and paragraphs without a visible character are no sequences. A sequence above 2**20
    characters is cut before a line end or a space, where byte-level BPE and SentencePiece encode
    the parts as they would the whole.

    Args:
        file: a path, or "-" for standard input; .gz and .zst are decompressed, .jsonl (also
            below .gz or .zst) has a JSON object on each line.
        boundaries: what a sequence is: a line, a paragraph (set off by empty lines), or the
            document: a whole text file, or the text of one .jsonl object.
        field: the .jsonl field with the text.
        meter: is told how far reading has come.

    Raises:
        OSError: the file cannot be read.
        FormatError: damaged compression, bytes that are not UTF-8, or lines that are not JSON
            with that field; the message has file, line and byte.
        ValueError: the file is empty.
        ImportError: zstandard is missing (extra ``train``).
    """
    blocks = _decode_blocks(file, meter)
    empty = True
    pieces = (
        _read_jsonl(blocks, boundaries, field) if is_jsonl(file) else _split(blocks, boundaries)
    )
    for piece in pieces:
        empty = empty and not piece.text.strip()
        yield piece
    if empty:
        raise ValueError(f"{file}: no text in the file; expected some, or leave the file out")


def is_jsonl(file: str) -> bool:
    """Whether a file's name says that it has a JSON object on each line."""
    return re.search(r"\.(jsonl|ndjson)(\.gz|\.zst)?$", file) is not None


def _decode_blocks(file: str, meter: Meter) -> Iterator[tuple[str, Place]]:
    """The text in blocks that end before white space, and where each begins."""
    place = Place("<standard input>" if file == STANDARD_INPUT else file, 1)
    byte = 0
    held = b""
    for chunk in itertools.chain(read_chunks(file, meter), [b""]):
        held += chunk
        cut = max(held.rfind(b"\n"), held.rfind(b" ")) if chunk else len(held)
        if cut > 0:
            yield _decode(held[:cut], place, byte), place
            place = Place(place.file, place.line + held.count(b"\n", 0, cut))
            byte += cut
            held = held[cut:]


def _decode(data: bytes, place: Place, byte: int) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = place.line + data.count(b"\n", 0, error.start)
        raise FormatError(
            f"{place.file}, line {line}: byte {byte + error.start} (0x{data[error.start]:02x}) is "
            f"not UTF-8 ({error.reason}); convert the file, for example with iconv -f latin1 -t "
            "utf-8"
        ) from error


def _split(blocks: Iterator[tuple[str, Place]], boundaries: Boundaries) -> Iterator[Piece]:
    """Cut a stream of blocks into sequences."""
    separator = _SEPARATORS[boundaries]
    held, begun = "", False  # text of the sequence not yet given out; whether some was
    place = Place("", 1)
    for block, here in blocks:
        place = place if held else here
        held += block
        if separator:
            held = held.replace("\r\n", "\n")
            *whole, held = held.split(separator)
            for text in whole:
                if begun or text.strip():
                    yield Piece(text, True, place)
                begun = False
                place = Place(place.file, place.line + text.count("\n") + len(separator))
        while (not separator and held) or len(held) > _PART_CHARACTERS:
            part, held = _take_part(held)
            yield Piece(part, False, place)
            place = Place(place.file, place.line + part.count("\n"))
            begun = True
    if begun or held.strip():
        yield Piece(held, True, place)


def _take_part(text: str) -> tuple[str, str]:
    """The first part of a long text and the rest, cut before white space where there is some."""
    if len(text) <= _PART_CHARACTERS:
        return text, ""
    cut = max(text.rfind("\n", 1, _PART_CHARACTERS), text.rfind(" ", 1, _PART_CHARACTERS))
    cut = cut if cut > 0 else _PART_CHARACTERS
    return text[:cut], text[cut:]


def _read_jsonl(
    blocks: Iterator[tuple[str, Place]], boundaries: Boundaries, field: str
) -> Iterator[Piece]:
    parts: list[str] = []
    for piece in _split(blocks, "line"):
        parts.append(piece.text)
        if piece.ends:
            text = json_field("".join(parts), field, piece.place)
            parts = []
            yield from split_text(text, boundaries, piece.place)


def split_text(text: str, boundaries: Boundaries, place: Place) -> Iterator[Piece]:
    """The sequences of a text that is at hand, as read_pieces cuts those of a file.

    The last piece always ends its sequence.
    """
    if boundaries != "document" or len(text) > _PART_CHARACTERS:
        yield from _split(iter([(text, place)]), boundaries)
    elif text.strip():
        yield Piece(text, True, place)


def json_field(line: str, field: str, place: Place) -> str:
    """The text in a field of a JSON object.

    Raises:
        FormatError: the line is no JSON object, or has no text there.
    """
    try:
        record = json.loads(line)
    except ValueError as error:
        raise FormatError(
            f"{place}: not JSON ({error}); expected an object on each line"
        ) from error
    if not isinstance(record, dict):
        raise FormatError(f"{place}: a JSON {type(record).__name__}; expected an object")
    text = record.get(field)
    if not isinstance(text, str):
        found = ", ".join(sorted(key for key, value in record.items() if isinstance(value, str)))
        raise FormatError(
            f"{place}: no text in field {field!r}; its text fields are: {found or 'none'}; name "
            "one of them (field, --field)"
        )
    return text
