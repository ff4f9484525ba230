"""Run by scripts/test_wheel.py with the Python of its venv: checks and tests the installed package.

Usage: installed_tests.py quick                     a small job with both engines
       installed_tests.py pytest [ARGUMENT ...]     the tests, in this process

Both say where the package was found; it is an error if that is not the venv, or if a libfst.so
was loaded by the end of the run while pywrapfst, which brings its own, is not installed.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path

import numpy as np

import lattice_bpd
from lattice_bpd import NGramLM, rescore_lattice


def check_location() -> None:
    """The package must be the installed one, with its own module."""
    for module in (lattice_bpd, lattice_bpd._core):
        path = Path(module.__file__ or "").resolve()
        if Path(sys.prefix).resolve() not in path.parents:
            raise SystemExit(f"test-wheel: {path} is not in {sys.prefix}; expected the wheel's")
    print(f"test-wheel: lattice_bpd is {Path(lattice_bpd.__file__).parent}", flush=True)


def check_libraries() -> None:
    """No shared OpenFst may be in this process."""
    maps = Path("/proc/self/maps").read_text()
    loaded = sorted({line.split()[-1] for line in maps.splitlines() if "libfst" in line})
    if importlib.util.find_spec("pywrapfst") is not None:
        print(f"test-wheel: pywrapfst is installed and has its own OpenFst: {loaded}")
    elif loaded:
        raise SystemExit(f"test-wheel: {loaded} was loaded; expected no libfst at all")
    else:
        print("test-wheel: no libfst in /proc/self/maps")


def quick_check() -> int:
    """Trains, saves, loads, and rescores with both engines, which must agree."""
    rng = np.random.default_rng(0)
    lm = NGramLM.train([rng.integers(0, 50, 5000)], 3, vocab_size=50, smoothing="witten_bell")
    with tempfile.TemporaryDirectory() as folder:
        lm.save(Path(folder) / "lm")
        lm = NGramLM.load(Path(folder) / "lm")
        logits = rng.normal(size=(20, 6, 50)).astype(np.float32)
        contexts = [[1, 2]] * 20
        fused, openfst = (
            rescore_lattice(logits, contexts, lm, top_k=8, num_drafts=9, engine=engine)
            for engine in ("fused", "openfst")
        )
    equal = np.array_equal(fused.token_ids, openfst.token_ids)
    print(f"test-wheel: both engines agree on 20 lattices: {equal}")
    return 0 if equal else 1


def main() -> int:
    check_location()
    if sys.argv[1] == "quick":
        status = quick_check()
    else:
        import pytest

        status = int(pytest.main(sys.argv[2:]))
    check_libraries()
    return status


if __name__ == "__main__":
    sys.exit(main())
