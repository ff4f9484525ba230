"""Instructions of searches, counted by valgrind: figures without noise.

Run as a program, this file does the searches that valgrind counts, each run in a fork of one
process, since most of the time is that of importing numpy. The count of a long run less that of a
short one is the searches alone. valgrind knows no AVX-512, so the counts are of AVX2 and plain C++.
For the comparison with a baseline see instruction_baseline.py.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lattices import Lattices, rescore, search_mixtures, tree_arguments

from lattice_bpd import NGramLM, _core

_SHORT, _LONG = 20, 120  # lattices
_PRIVATE_CACHE = ("--cache-sim=yes", f"--LL={1 << 20},16,64")  # in place of the last level


class Search(NamedTuple):
    """What is counted.

    Attributes:
        name: of the results.
        slots: H.
        top_k: k.
        tree: searches for a tree of 36 nodes instead of 16 drafts.
        instruction_set: "" for the best that valgrind knows, AVX2.
        large_vocabulary: of LARGE_VOCAB_SIZE, for which LMs have 4-byte keys.
        mixture: searches for a tree of 36 nodes of a mixture of heads, LM and text.
    """

    name: str
    slots: int
    top_k: int
    tree: bool = False
    instruction_set: str = ""
    large_vocabulary: bool = False
    mixture: bool = False

    def run(self, lattices: Lattices, lm: NGramLM) -> None:
        """Search all lattices in one call."""
        _core.set_fused_instruction_set(self.instruction_set)
        if self.mixture:
            search_mixtures(lattices, lm)
        elif self.tree:
            _core.find_trees(*tree_arguments(lattices, lm, 36))
        else:
            rescore(lattices, lm, 16, "fused")


SEARCHES = (
    Search("list_8x16", 8, 16),
    Search("tree_8x16", 8, 16, tree=True),
    Search("list_8x16_scalar", 8, 16, instruction_set="scalar"),
    Search("mixture_8x16", 8, 16, mixture=True),
    Search("list_8x16_large_vocabulary", 8, 16, large_vocabulary=True),
)


class MissingValgrindError(RuntimeError):
    """No valgrind on this machine."""


def count_instructions(
    lm_path: Path, lattices: dict[str, Lattices]
) -> tuple[dict[str, int], dict[str, str]]:
    """Instructions for one lattice of each search, and what decides them besides our code.

    Args:
        lm_path: of the LM's file; its folder keeps temporary files. That of the LM with the large
            vocabulary is `large_vocabulary_path(lm_path)`.
        lattices: by the searches' names, _LONG of each.

    Returns:
        The counts by the searches' names; compiler, C library and instruction sets.

    Raises:
        MissingValgrindError: there is none.
    """
    _save(lm_path, lattices)
    short = {search.name: _SHORT for search in SEARCHES}
    runs = [short, *({**short, search.name: _LONG} for search in SEARCHES)]
    found, instructions = _valgrind(lm_path, runs)
    base, *totals = (one["I refs"] for one in found)
    counts = {
        search.name: round((total - base) / (_LONG - _SHORT))
        for search, total in zip(SEARCHES, totals, strict=True)
    }
    libc = " ".join(platform.libc_ver())
    return counts, {"compiler": find_compiler(), "libc": libc, "instructions": instructions}


def find_compiler() -> str:
    """That of the core, such as "GCC 12.2.0"."""
    code = Path(_core.__file__).read_bytes()
    found = re.search(rb"clang version [\d.]+", code) or re.search(rb"GCC: \([^)]*\) [\d.]+", code)
    return "unknown" if found is None else re.sub(r":.*\)", "", found[0].decode())


def count_line_fills(lm_path: Path, lattices: Lattices) -> float:
    """Cache lines that one lattice (of 8 x 16, 16 best) brings into a private cache of 1 MiB.

    Args:
        lm_path: of the LM's file; its folder keeps temporary files.
        lattices: _LONG of them or more.

    Raises:
        MissingValgrindError: there is none.
    """
    name = SEARCHES[0].name
    _save(lm_path, {name: lattices})
    runs = [{name: count} for count in (_SHORT, _LONG)]
    short, long = (one["LLd misses"] for one in _valgrind(lm_path, runs, _PRIVATE_CACHE)[0])
    return (long - short) / (_LONG - _SHORT)


def large_vocabulary_path(lm_path: Path) -> Path:
    """The file of the same LM in the large vocabulary."""
    return lm_path.with_stem(f"{lm_path.stem}-large-vocabulary")


def _save(lm_path: Path, lattices: dict[str, Lattices]) -> None:
    for name, some in lattices.items():
        np.savez(lm_path.with_name(f"valgrind-{name}.npz"), **some._asdict())


def _load(lm_path: Path, name: str) -> Lattices:
    with np.load(lm_path.with_name(f"valgrind-{name}.npz")) as arrays:
        return Lattices(**arrays)


def _valgrind(
    lm_path: Path, runs: Sequence[dict[str, int]], cache: Sequence[str] = ("--cache-sim=no",)
) -> tuple[list[dict[str, int]], str]:
    """The totals that cachegrind prints of each run of this program, and its instruction sets."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise MissingValgrindError("found no valgrind; apt-get install valgrind")
    command = [valgrind, "--tool=cachegrind", "--cachegrind-out-file=/dev/null", *cache]
    fixed = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "LATTICE_BPD_REBUILD": "0"}
    done = subprocess.run(
        [*command, sys.executable, __file__, lm_path, json.dumps(runs)],
        capture_output=True, text=True, env={**os.environ, **fixed},
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"valgrind_counts: {' '.join(command)} failed:\n{done.stderr[-2000:]}")
    printed = json.loads(done.stdout)
    totals: dict[int, dict[str, int]] = {}
    for process, name, value in re.findall(r"==(\d+)== (.+?): +([\d,]+)", done.stderr):
        totals.setdefault(int(process), {})[" ".join(name.split())] = int(value.replace(",", ""))
    return [totals[process] for process in printed["processes"]], printed["instructions"]


def _fork_runs(lm_path: Path, runs: Sequence[dict[str, int]]) -> dict[str, Any]:
    """Each run in a process, two at a time; what `_valgrind` reads."""
    processes: list[int] = []
    for number, run in enumerate(runs):
        if number >= 2:
            _wait()
        process = os.fork()
        if process == 0:
            _run_instructions(lm_path, run)
            os._exit(0)
        processes.append(process)
    for _ in runs[-2:]:
        _wait()
    return {"processes": processes, "instructions": " ".join(_core.fused_instruction_sets())}


def _wait() -> None:
    process, status = os.wait()
    if status:
        sys.exit(f"valgrind_counts: process {process} ended with status {status}")


def _run_instructions(lm_path: Path, counts: dict[str, int]) -> None:
    for search in SEARCHES:
        if search.name not in counts:
            continue
        path = large_vocabulary_path(lm_path) if search.large_vocabulary else lm_path
        lm, lattices = NGramLM.load(path, verify=False), _load(lm_path, search.name)
        search.run(lattices.take(0, _SHORT), lm)  # warm
        search.run(lattices.take(0, counts[search.name]), lm)


if __name__ == "__main__":
    print(json.dumps(_fork_runs(Path(sys.argv[1]), json.loads(sys.argv[2]))))
