"""Items of evaluation files: JSON lines, JSON, CSV or plain text, also compressed."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lattice_bpd._core import FormatError
from lattice_bpd.text_input import parse_json, read_text


class Item(NamedTuple):
    """One example: its values by name, and its file and line for messages."""

    fields: dict[str, Any]
    location: str


def read_items(path: str | Path) -> Iterator[Item]:
    """The examples of a file, in the format of its suffix (before .gz or .zst).

    Args:
        path: .jsonl or .ndjson: an object per line. .json: a list of objects, an object with such
            a list under "data", or SQuAD's nested format (questions without an answer are left
            out). .csv, .tsv: a header, then values. Else plain text: paragraphs separated by empty
            lines, each the field "text".

    Raises:
        OSError: it cannot be read.
        FormatError: damaged, not UTF-8, or not in the format of its suffix.
        ValueError: an empty file.
    """
    path = Path(path)
    text = read_text(path)
    name = re.sub(r"\.(gz|zst)$", "", path.name, flags=re.IGNORECASE)
    read = _READERS.get(name.rsplit(".", 1)[-1].lower(), _read_paragraphs)
    empty = True
    for item in read(text, path):
        empty = False
        yield item
    if empty:
        raise ValueError(f"{path}: no examples in the file; expected one or more")


def _read_lines(text: str, path: Path) -> Iterator[Item]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            location = f"{path}, line {number}"
            yield _to_item(parse_json(line, location, "an object on each line"), location)


def _read_json(text: str, path: Path) -> Iterator[Item]:
    value = parse_json(
        text, str(path), "a list of objects; files with an object on each line end in .jsonl"
    )
    if isinstance(value, dict):
        value = value.get("data")
    if not isinstance(value, list):
        raise FormatError(
            f'{path}: expected a list of objects, or an object with one under "data", as SQuAD has'
        )
    for number, entry in enumerate(value, 1):
        if isinstance(entry, dict) and "paragraphs" in entry:
            yield from _read_article(entry, f"{path}, article {number}")
        else:
            yield _to_item(entry, f"{path}, item {number}")


def _read_article(article: dict[str, Any], location: str) -> Iterator[Item]:
    """SQuAD's nesting: articles of paragraphs of questions."""
    try:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                if question.get("is_impossible") or not question.get("answers"):
                    continue
                fields = {**question, "context": paragraph["context"]}
                yield Item(fields, f"{location}, question {question.get('id', '?')}")
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            f"{location}: not SQuAD's format ({error!r}); expected paragraphs with context and qas"
        ) from error


def _read_csv(text: str, path: Path) -> Iterator[Item]:
    dialect = "excel-tab" if ".tsv" in path.name.lower() else "excel"
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, dialect=dialect)
    limit = csv.field_size_limit(len(text) + 1)  # documents are longer than csv's 131,072
    try:
        for row in reader:
            location = f"{path}, line {reader.line_num}"
            if None in row or None in row.values():
                raise FormatError(
                    f"{location}: another number of values than the first line has names "
                    f"({len(reader.fieldnames or ())}); quote values that hold commas"
                )
            yield Item({str(key): value for key, value in row.items()}, location)
    except csv.Error as error:
        raise FormatError(f"{path}, line {reader.line_num}: damaged CSV ({error})") from error
    finally:
        csv.field_size_limit(limit)


def _read_paragraphs(text: str, path: Path) -> Iterator[Item]:
    line = 1
    for piece in re.split(r"((?:\n[ \t\r]*)+\n)", text):
        if piece.strip():
            yield Item({"text": piece.strip("\r\n")}, f"{path}, line {line}")
        line += piece.count("\n")


def _to_item(value: Any, location: str) -> Item:
    if not isinstance(value, dict):
        raise FormatError(f"{location}: a JSON {type(value).__name__}; expected an object")
    return Item(value, location)


_READERS = {
    "jsonl": _read_lines, "ndjson": _read_lines, "json": _read_json, "csv": _read_csv,
    "tsv": _read_csv,
}  # fmt: skip
