"""Finds the Pythons of this machine that wheels can be built for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MINORS = range(10, 15)
PROBE = (
    "import sys, sysconfig, os, venv, ensurepip; "
    "os.stat(os.path.join(sysconfig.get_path('include'), 'Python.h')); "
    "print(sys.implementation.cache_tag, sys._base_executable)"
)


@dataclass(frozen=True)
class Python:
    """An interpreter.

    Attributes:
        path: its executable.
        tag: its ABI as wheels name it, such as ``cp311``.
    """

    path: str
    tag: str


def probe(path: str) -> Python | None:
    """The interpreter at `path`, or None where it does not run or cannot build (no Python.h)."""
    try:
        done = subprocess.run([path, "-c", PROBE], capture_output=True, text=True, timeout=60)
    except OSError:
        return None
    if done.returncode:
        return None
    cache_tag, executable = done.stdout.split(maxsplit=1)
    return Python(executable.strip(), cache_tag.replace("cpython-", "cp"))


def candidates() -> Iterable[str]:
    """Where Pythons may be: this one, those on PATH, pyenv's."""
    yield sys.executable
    for minor in MINORS:
        yield from filter(None, [shutil.which(f"python3.{minor}")])
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for minor in MINORS:
        yield from map(str, sorted(pyenv.glob(f"versions/3.{minor}.*/bin/python3.{minor}")))


def find_pythons(wanted: str = "") -> list[Python]:
    """One Python for each version that is found, this one first.

    Args:
        wanted: Names or paths, with spaces between them, instead of all that are found.

    Raises:
        SystemExit: A wanted one does not run, or lacks headers or venv.
    """
    by_tag: dict[str, Python] = {}
    for path in wanted.split() or candidates():
        python = probe(path)
        if python is not None:
            by_tag.setdefault(python.tag, python)
        elif wanted:
            raise SystemExit(
                f"{path} does not run, or lacks Python.h, venv or ensurepip; expected the name or "
                "path of a Python >= 3.10 with its headers (Debian: python3-dev, python3-venv)"
            )
    return list(by_tag.values())
