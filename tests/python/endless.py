"""Processes that run until a test ends them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def endless_process(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Python code in a process of its own, which is killed at the end if it still runs."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()  # without effect on one that has ended
