"""Whole commands, measured from outside: wall clock, CPU time and the largest resident memory.

A command is started by a small process of its own (this file, run as a script): Linux counts the
memory of whoever starts a program towards the program's peak, and a benchmark holds large arrays.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Usage(NamedTuple):
    """What a command took.

    Attributes:
        wall: Seconds from start to end.
        cpu: Seconds of all its threads.
        peak_mib: Largest resident memory.
        output: What it printed on standard output.
    """

    wall: float
    cpu: float
    peak_mib: float
    output: str


def run_measured(command: Sequence[str | Path], stdin: Path | None = None) -> Usage:
    """Runs a command to its end.

    Raises:
        RuntimeError: it failed; the message has its last words.
    """
    own = [sys.executable, "-I", "-S", __file__]
    environment = {**os.environ, "LATTICE_BPD_REBUILD": "0"}  # an import must not check for changes
    with (stdin or Path(os.devnull)).open("rb") as source:
        done = subprocess.run(
            [*own, *map(str, command)], stdin=source, capture_output=True, env=environment
        )
    report, _, output = done.stdout.decode().partition("\n")
    if done.returncode != 0:
        words = (output + done.stderr.decode())[-2000:]
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{words}")
    return Usage(**json.loads(report), output=output)


def take_medians(usages: Sequence[Usage]) -> dict[str, float]:
    """Medians of runs of one command, for reports."""
    return {
        "wall_s": round(statistics.median(usage.wall for usage in usages), 3),
        "cpu_s": round(statistics.median(usage.cpu for usage in usages), 3),
        "peak_mib": round(max(usage.peak_mib for usage in usages), 1),
        "runs": len(usages),
    }


def _measure(command: Sequence[str]) -> int:
    """Runs the command; its figures come before what it prints."""
    start = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
    figures = {
        "wall": wall,
        "cpu": usage.ru_utime + usage.ru_stime,
        "peak_mib": usage.ru_maxrss / 1024,
    }
    sys.stdout.buffer.write(json.dumps(figures).encode() + b"\n" + output)
    return process.returncode


if __name__ == "__main__":
    sys.exit(_measure(sys.argv[1:]))
