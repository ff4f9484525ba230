"""ARPA text in files: gzipped or not, in any encoding that extends ASCII, written atomically."""

from __future__ import annotations

import errno
import glob
import gzip
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lattice_bpd import _core
from lattice_bpd.lm.options import native_path
from lattice_bpd.vocabulary import StrPath, ascii_codec

_GZIP = b"\x1f\x8b"
_HINT = " (the file is not UTF-8: pass encoding='latin-1', or what it is in)"
_NOT_UTF8 = re.compile(r"(?:\\x[0-9a-f]{2})+")  # how the core's messages show such bytes


def read_arpa_words(path: StrPath, *, encoding: str = "utf-8") -> list[str]:
    """The words of an ARPA file's unigrams in file order, without ``<s>``, ``</s>``, ``<unk>``.

    Args:
        path: The file, plain or gzipped.
        encoding: Of the words: UTF-8, or another one that extends ASCII, such as Latin-1.

    Raises:
        OSError: The file cannot be opened.
        FormatError: Malformed text; the message has the line. Or words of another encoding.
        ValueError: An encoding that is not known, or does not extend ASCII.
    """
    codec = ascii_codec(encoding)
    with open_arpa(path, codec) as plain:
        words = _core.read_arpa_words(plain)
    try:
        return [word.decode(codec) for word in words]
    except UnicodeDecodeError as error:
        raise _core.FormatError(
            f"{os.fspath(path)}: the word {error.object[:60]!r} is not {codec}; expected the "
            "file's encoding, such as encoding='latin-1'"
        ) from None


@contextmanager
def open_arpa(path: StrPath, codec: str) -> Iterator[str]:
    """The path of the plain text of an ARPA file, which is a temporary copy where it is gzipped.

    Errors that are raised inside name the user's file, and show words in its encoding.

    Args:
        path: The file, plain or gzipped.
        codec: What ascii_codec returned for its encoding.
    """
    source = native_path(path)
    with ExitStack() as stack:
        plain = source
        if _is_gzip(source):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            plain = os.fspath(_unpack(Path(source), Path(folder)))
        try:
            yield plain
        except _core.FormatError as error:
            message = str(error).replace(plain, source)
            raise _core.FormatError(_show_words(message, codec)) from None


def write_gzip(path: Path, write: Callable[[Path], None]) -> None:
    """Gzips what `write` writes into a file; the same text gives the same bytes.

    Args:
        path: The .gz file; written to a temporary name, flushed to the disk, then renamed.
        write: Writes the plain text into the file that it is given.

    Raises:
        OSError: It cannot be written; what was at `path` is untouched.
    """

    def write_packed(temporary: Path) -> None:
        plain = temporary.with_name("plain.tmp")
        write(plain)
        with (
            plain.open("rb") as text,
            temporary.open("wb") as raw,
            gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed,
        ):
            shutil.copyfileobj(text, packed, 1 << 20)

    replace_file(path, write_packed)


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Lets `write` write a file in a temporary folder beside `path`, then renames it to `path`.

    Raises:
        OSError: It cannot be written; what was at `path` is untouched.
    """
    folder = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    if path.exists() and not path.is_file():
        number = errno.EISDIR if path.is_dir() else errno.EINVAL
        raise OSError(
            number,
            f"cannot replace {path}: it is not a regular file; what was there before is untouched",
            os.fspath(path),
        )
    try:
        _remove_leftovers(path)
        folder.mkdir(exist_ok=True)
        temporary = folder / path.name
        write(temporary)
        _flush_to_disk(temporary)
        temporary.replace(path)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(
            error.errno,
            f"cannot write {path}: {reason}; what was there before is untouched",
            os.fspath(path),
        ) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_gzip(path: str) -> bool:
    """Whether a regular file begins as gzip files do; what cannot be opened, the core reports."""
    try:
        if not Path(path).is_file():
            return False
        with Path(path).open("rb") as file:
            return file.read(2) == _GZIP
    except OSError:
        return False


def _unpack(source: Path, folder: Path) -> Path:
    plain = folder / "plain.arpa"
    try:
        with gzip.open(source, "rb") as packed, plain.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    except EOFError:
        raise _core.FormatError(f"{source}: the gzip file is cut; copy it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise _core.FormatError(f"{source}: a damaged gzip file ({error})") from None
    except OSError as error:
        raise OSError(
            error.errno,
            f"cannot unpack {source} into {folder.parent}: {error.strerror}; set TMPDIR to a "
            "folder with enough space",
            os.fspath(source),
        ) from None
    return plain


def _show_words(message: str, codec: str) -> str:
    """Decodes bytes that the core could not show as UTF-8, or says what to do about them."""
    if _HINT in message or not _NOT_UTF8.search(message):
        return message
    if codec == "utf-8":
        return message + _HINT
    return _NOT_UTF8.sub(
        lambda match: bytes.fromhex(match[0].replace("\\x", "")).decode(codec, "backslashreplace"),
        message,
    )


def _flush_to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _remove_leftovers(target: Path) -> None:
    """Removes the folders of processes that were killed while they wrote the target."""
    for folder in target.parent.glob(f".{glob.escape(target.name)}.*.tmp"):
        process = folder.name.removeprefix(f".{target.name}.").removesuffix(".tmp")
        if process.isdecimal() and not _is_running(int(process)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
