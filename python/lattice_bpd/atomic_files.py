"""Files that are replaced as a whole, and the headers of JSON formats."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path that is flushed to the disk and renamed to `path` at the end of the block.

    Readers see the old file or the new one, also with several writers at once. If the block raises,
    the temporary file is removed and `path` is untouched. Symbolic links are followed. Devices,
    pipes and sockets, such as /dev/stdout, are written directly: the path of the block is `path`.

    Raises:
        OSError: The file cannot be written.
    """
    if is_special(path):
        yield path
        return
    target = Path(os.path.realpath(path))
    folder = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary_folder(folder):
            temporary = folder / target.name
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())  # the rename is not to reach the disk before the file
            temporary.replace(target)
    except OSError as error:
        if not str(error.filename or folder).startswith(str(folder)):  # of another file
            raise
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(
            error.errno,
            f"cannot write {path}: {reason}; what was there before is untouched",
            os.fspath(path),
        ) from None


def write_text(path: Path, text: str) -> None:
    """Replaces a file by UTF-8 text; see :func:`replacing`."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any, *, indent: int = 2) -> None:
    """Replaces a file by JSON; see :func:`replacing`."""
    write_text(path, json.dumps(value, indent=indent) + "\n")


@contextmanager
def temporary_folder(folder: Path | None = None) -> Iterator[Path]:
    """A folder that is removed after the block, also if a signal interrupts its removal.

    Args:
        folder: its path; a new one in the system's temporary folder when None.

    Raises:
        OSError: it cannot be made.
    """
    folder = folder or Path(tempfile.gettempdir(), f"lattice-bpd-{secrets.token_hex(8)}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        yield folder
    finally:
        try:
            shutil.rmtree(folder, ignore_errors=True)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A block in which no other process locks the folder; the end of the process unlocks it too.

    Raises:
        BlockingIOError: another one has locked it.
        OSError: no such folder.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(
                f"{folder}: another process works here; wait for it, or give another folder"
            ) from error
        yield
    finally:
        os.close(handle)


def is_special(path: Path) -> bool:
    """Whether a path leads to a device, a pipe, a socket or a file descriptor of a process.

    /dev/stdout is special where standard output is redirected to a regular file, too: a file that
    replaced that one would lose what is printed.

    Raises:
        OSError: The symbolic links are a cycle, or a folder cannot be searched.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISREG(mode):
        return not stat.S_ISDIR(mode)
    while path.is_symlink():
        if Path(os.path.realpath(path.parent)).is_relative_to("/proc"):
            return True
        path = path.parent / path.readlink()
    return False


def check_header(value: Any, name: str, version: int) -> dict[str, Any]:
    """The content of a JSON object, without its keys "format" and "version".

    Raises:
        ValueError: Not an object, or not of format `name` and this version.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"it holds a {type(value).__name__}; expected an object")
    header = (value.get("format"), value.get("version"))
    if header != (name, version):
        raise ValueError(f"format and version are {header}; expected {(name, version)}")
    return {key: item for key, item in value.items() if key not in ("format", "version")}
