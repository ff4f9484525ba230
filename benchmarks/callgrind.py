"""Instructions of the AVX2 search for one lattice, counted by valgrind: a figure without noise.

Run as a program, it rescores the first N lattices of a file; the count of a long run less that of
a short one is the search alone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from lattices import Lattices, rescore

from lattice_bpd import NGramLM, _core

_COUNTS = (50, 250)


def count_instructions(lattices: Lattices, lm_path: Path, num_drafts: int) -> float | None:
    """Instructions for one lattice; None without valgrind."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        print("note: no valgrind; instructions are not counted (apt-get install valgrind)")
        return None
    file = lm_path.with_name("callgrind.npz")
    np.savez(file, **lattices._asdict())
    totals = []
    for count in _COUNTS:
        command = [valgrind, "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable]
        arguments = [__file__, str(file), str(lm_path), str(num_drafts), str(count)]
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, env=environment, check=True
        )
        match = re.search(r"Collected : (\d+)", done.stderr)
        assert match, done.stderr
        totals.append(int(match.group(1)))
    return (totals[1] - totals[0]) / (_COUNTS[1] - _COUNTS[0])


def _rescore_some(file: str, lm_path: str, num_drafts: int, count: int) -> None:
    _core.set_fused_instruction_set("avx2")
    with np.load(file) as arrays:
        lattices = Lattices(**arrays)
    lm = NGramLM.load(lm_path, verify=False)
    rescore(lattices.take(0, _COUNTS[0]), lm, num_drafts, "fused")  # warm
    rescore(lattices.take(0, count), lm, num_drafts, "fused")


if __name__ == "__main__":
    _rescore_some(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
