"""ARPA files: plain or compressed, in UTF-8."""

from __future__ import annotations

import gzip
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lattice_bpd import _core
from lattice_bpd.atomic_files import replacing, temporary_folder
from lattice_bpd.lm.training import native_path
from lattice_bpd.text_input import GZIP, ZSTD, read_chunks, refuse_foreign
from lattice_bpd.vocabulary import StrPath

_EXPECTED = "ARPA text, plain or compressed by gzip or zstd"
_HINT = " (the file is not UTF-8: convert it, for example with iconv -f latin1 -t utf-8)"
_NOT_UTF8 = re.compile(r"\\x[0-9a-f]{2}")  # how the core escapes such bytes


def read_arpa_words(path: StrPath) -> list[str]:
    """The words of an ARPA file's unigrams in file order, without ``<s>``, ``</s>``, ``<unk>``.

    Args:
        path: The file, plain or compressed by gzip or zstd.

    Raises:
        OSError: The file cannot be opened.
        FormatError: Malformed text (the message has the line number), or not UTF-8.
    """
    with open_arpa(path) as plain:
        words = _core.read_arpa_words(plain)
    try:
        return [word.decode() for word in words]
    except UnicodeDecodeError as error:
        raise _core.FormatError(
            f"{os.fspath(path)}: the word {error.object[:60]!r} is no text{_HINT}"
        ) from None


@contextmanager
def open_arpa(path: StrPath) -> Iterator[str]:
    """The path of an ARPA file's plain text, a temporary copy if it is compressed.

    Errors raised inside the block name the original file and, where a word is not UTF-8, say so.
    """
    source = native_path(path)
    with ExitStack() as stack:
        plain = source
        if Path(source).is_file() and _needs_copy(source):
            folder = stack.enter_context(temporary_folder())
            plain = os.fspath(_unpack(Path(source), folder))
        try:
            yield plain
        except _core.FormatError as error:
            message = str(error).replace(plain, source)
            is_other = _NOT_UTF8.search(message) and _HINT not in message
            raise _core.FormatError(message + _HINT if is_other else message) from None


def write_gzip(path: Path, write: Callable[[Path], None]) -> None:
    """Writes a gzip file; the same text gives the same bytes.

    Args:
        path: The .gz file, replaced as a whole.
        write: Writes the plain text to the path passed to it.

    Raises:
        OSError: It cannot be written; an existing file is untouched.
    """
    with (
        replacing(path) as temporary,
        temporary_folder(temporary.with_name(f".{secrets.token_hex(8)}.tmp")) as folder,
    ):
        plain = folder / "plain.arpa"
        write(plain)
        with (
            plain.open("rb") as text,
            temporary.open("wb") as raw,
            gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed,
        ):
            shutil.copyfileobj(text, packed, 1 << 20)


def _needs_copy(path: str) -> bool:
    """Whether the core cannot read a regular file itself; refuses other formats than ARPA."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(512)
    except OSError:
        return False  # the core says what is wrong
    if head.startswith((GZIP, ZSTD)):
        return True
    refuse_foreign(path, head, expected=_EXPECTED)
    return False


def _unpack(source: Path, folder: Path) -> Path:
    plain = folder / "plain.arpa"
    try:
        with plain.open("wb") as file:
            for chunk in read_chunks(os.fspath(source)):
                file.write(chunk)
    except OSError as error:
        raise OSError(
            error.errno,
            f"cannot unpack {source} into {folder.parent}: {error.strerror}; set TMPDIR to a "
            "folder with enough space",
            os.fspath(source),
        ) from None
    return plain
