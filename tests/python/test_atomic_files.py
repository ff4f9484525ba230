"""Files that are replaced as a whole: links, pipes, folders and failures."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import threading
from pathlib import Path

import pytest

from lattice_bpd.atomic_files import replacing, write_json, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("exists", [False, True])
def test_a_symbolic_link_stays_and_its_file_is_written(exists, tmp_path):
    (tmp_path / "other").mkdir()
    file, link = tmp_path / "other" / "file", tmp_path / "link"
    link.symlink_to("other/next")
    (tmp_path / "other" / "next").symlink_to("file")
    if exists:
        file.write_text("old")
    with replacing(link) as temporary:
        assert temporary.is_relative_to(tmp_path / "other")
        temporary.write_text("new")
    assert link.is_symlink()
    assert not file.is_symlink()
    assert file.read_text() == "new"
    with pytest.raises(TypeError), replacing(link) as temporary:
        temporary.write_text(temporary.write_text("half"))  # a number
    assert file.read_text() == "new"
    assert names(tmp_path) == ["link", "other"]
    assert names(tmp_path / "other") == ["file", "next"]


@pytest.mark.parametrize("name", ["pipe", "link"])
def test_a_pipe_is_written_directly(name, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_json(tmp_path / name, {"a": 1})
    reader.join()
    assert received == ['{\n  "a": 1\n}\n']
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path) == ["link", "pipe"]


def test_errors_name_the_file_that_they_are_of(tmp_path):
    (tmp_path / "file").write_text("old")
    message = r"cannot write .*file: No space.*is untouched"
    with pytest.raises(OSError, match=message) as raised, replacing(tmp_path / "file"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert raised.value.filename == str(tmp_path / "file")
    with pytest.raises(FileNotFoundError) as raised, replacing(tmp_path / "file") as temporary:
        shutil.copyfile(tmp_path / "missing", temporary)
    assert raised.value.filename == str(tmp_path / "missing")
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    with replacing(tmp_path / "file") as first:
        first.write_text("first")
        with replacing(tmp_path / "file") as second:
            second.write_text("second")
        assert (tmp_path / "file").read_text() == "second"
    assert (tmp_path / "file").read_text() == "first"
    assert names(tmp_path) == ["file"]


def test_folders_and_cycles_are_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "to-folder").symlink_to("folder")
    (tmp_path / "cycle").symlink_to("cycle")
    before = names(tmp_path)
    for name in ("folder", "to-folder"):
        with pytest.raises(IsADirectoryError), replacing(tmp_path / name) as temporary:
            temporary.write_text("new")
    with pytest.raises(OSError, match="symbolic links"), replacing(tmp_path / "cycle") as temporary:
        temporary.write_text("new")
    with pytest.raises(OSError, match="missing"):
        write_text(tmp_path / "missing" / "file", "new")
    assert names(tmp_path) == before
    assert names(tmp_path / "folder") == []


def test_a_large_file_is_flushed_before_the_rename(monkeypatch, tmp_path):
    operations: list[str] = []
    rename = Path.replace

    def renamed(path: Path, target: Path) -> Path:
        operations.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", lambda _handle: operations.append("flush"))
    monkeypatch.setattr(Path, "replace", renamed)
    with replacing(tmp_path / "file") as temporary:
        temporary.write_bytes(b"content")
    assert operations == ["flush", "rename"]
    assert (tmp_path / "file").read_bytes() == b"content"


def test_a_descriptor_that_is_a_file_is_not_replaced(tmp_path):
    log, link = tmp_path / "log", tmp_path / "stdout"
    with log.open("w") as file:
        link.symlink_to(f"/proc/self/fd/{file.fileno()}")  # as /dev/stdout
        inode = os.fstat(file.fileno()).st_ino
        write_text(link, "text")
    assert (log.read_text(), log.stat().st_ino, link.is_symlink()) == ("text", inode, True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files left open
def test_an_interrupt_at_any_moment_leaves_no_temporary_folder(tmp_path):
    """As a signal does, an exception is raised at the n-th call of a function or its end."""

    def write() -> None:
        with replacing(tmp_path / "file") as temporary:
            temporary.write_text("new")

    def interrupt(_frame: object, event: str, function: object) -> None:
        nonlocal countdown
        if event in ("call", "c_call", "c_return") and function is not sys.setprofile:
            countdown -= 1
            if not countdown:
                raise KeyboardInterrupt

    write()  # the first time compiles patterns
    moment = countdown = 0
    while countdown <= 0:
        moment += 1
        countdown = moment
        try:
            sys.setprofile(interrupt)
            write()
            sys.setprofile(None)
        except (KeyboardInterrupt, OSError):  # rmtree may close a descriptor twice
            sys.setprofile(None)
        assert names(tmp_path) == ["file"], moment
    assert moment > 100
