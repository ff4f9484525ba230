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

ORDERS = [
    ("numpy,lattice_bpd", "plain"), ("lattice_bpd,kenlm", "plain"),
    ("lattice_bpd,torch", "plain"), ("pywrapfst,torch,kenlm,lattice_bpd", "plain"),
    ("lattice_bpd,pywrapfst,kenlm,torch", "fork"), ("torch,kenlm,pywrapfst,lattice_bpd", "fork"),
    ("pywrapfst,lattice_bpd", "fork"), ("lattice_bpd,numpy", "fork"),
]  # fmt: skip


@pytest.mark.parametrize(("order", "how"), ORDERS)
def test_import_orders(order: str, how: str) -> None:
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
