"""lattice_bpd, pywrapfst, kenlm and torch in one process, in every order of import.

What goes wrong here is a hang (two copies of OpenFst's flag registry), so each case is a process
of its own with a timeout.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lattice_bpd import _core

WORK = Path(__file__).with_name("coexistence_work.py")

PLAIN = [
    "numpy,lattice_bpd", "lattice_bpd,pywrapfst", "lattice_bpd,kenlm", "kenlm,lattice_bpd",
    "lattice_bpd,torch", "torch,lattice_bpd", "pywrapfst,torch,kenlm,lattice_bpd",
    "kenlm,lattice_bpd,pywrapfst",
]  # fmt: skip
# These work in threads too, and in a child of a fork.
FORK = [
    "lattice_bpd,pywrapfst,kenlm,torch", "torch,kenlm,pywrapfst,lattice_bpd",
    "pywrapfst,lattice_bpd", "lattice_bpd,numpy",
]  # fmt: skip


def run_work(order: str, how: str) -> None:
    """Imports and works in a process of its own."""
    missing = [name for name in order.split(",") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    # A thread that ends just when another one forks holds a lock of MKL's memory pool, which torch
    # brings: its child would wait for it for ever. Without the pool there is no such lock.
    environment = {**os.environ, "MKL_DISABLE_FAST_MM": "1"}
    done = subprocess.run(
        [sys.executable, WORK, order, how],
        capture_output=True, text=True, timeout=120, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n")


@pytest.mark.parametrize(
    ("order", "how"), [(order, "plain") for order in PLAIN] + [(order, "fork") for order in FORK]
)
def test_import_orders(order: str, how: str) -> None:
    run_work(order, how)


def test_the_module_exports_its_init_function_only() -> None:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm (binutils) is not installed")
    module = Path(_core.__file__)
    listed = subprocess.run(
        [nm, "-D", "--defined-only", module], capture_output=True, text=True, check=True
    )
    symbols = [line.split()[-1] for line in listed.stdout.splitlines()]
    assert symbols == ["PyInit__core"]


def test_the_module_links_to_no_openfst() -> None:
    ldd = shutil.which("ldd")
    if ldd is None:
        pytest.skip("ldd is not installed")
    listed = subprocess.run([ldd, _core.__file__], capture_output=True, text=True, check=True)
    assert "libfst" not in listed.stdout
