"""Items of evaluation files: JSON lines, JSON, CSV or plain text, also compressed."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lattice_bpd._core import FormatError
from lattice_bpd.train.text.file_bytes import Meter, read_chunks


class Item(NamedTuple):
    """One example: its values by name, and its file and line for messages."""

    fields: dict[str, Any]
    location: str


def read_items(path: str | Path) -> Iterator[Item]:
    """The examples of a file, in the format of its suffix (before .gz or .zst).

    Args:
        path: .jsonl or .ndjson: an object per line. .json: a list of objects, an object with such
            a list under "data", or SQuAD's nested format (questions without an answer are left
            out). .csv: a header, then values. Else plain text: paragraphs separated by empty
            lines, each the field "text".

    Raises:
        OSError: it cannot be read.
        FormatError: damaged, not UTF-8, or not in the format of its suffix.
        ValueError: an empty file.
    """
    path = Path(path)
    text = _decode(b"".join(read_chunks(str(path), Meter())), path)
    name = re.sub(r"\.(gz|zst)$", "", path.name)
    read = _READERS.get(name.rsplit(".", 1)[-1], _read_paragraphs)
    empty = True
    for item in read(text, path):
        empty = False
        yield item
    if empty:
        raise ValueError(f"{path}: no examples in the file; expected one or more")


def _decode(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FormatError(
            f"{path}, line {line}: byte {error.start} is not UTF-8; convert the file, for example "
            "with iconv -f latin1 -t utf-8"
        ) from error


def _read_lines(text: str, path: Path) -> Iterator[Item]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            location = f"{path}, line {number}"
            try:
                value = json.loads(line)
            except ValueError as error:
                raise FormatError(
                    f"{location}: not JSON ({error}); expected an object on each line"
                ) from error
            yield _to_item(value, location)


def _read_json(text: str, path: Path) -> Iterator[Item]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise FormatError(
            f"{path}, line {error.lineno}: not JSON ({error.msg}); expected a list of objects; "
            "files with an object on each line end in .jsonl"
        ) from error
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
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
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


_READERS = {"jsonl": _read_lines, "ndjson": _read_lines, "json": _read_json, "csv": _read_csv}
