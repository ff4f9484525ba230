"""lattice_bpd, pywrapfst, kenlm and torch in one process, in every order of import.

What goes wrong here is a hang (two copies of OpenFst's flag registry), so each case is a process
of its own with a timeout.
"""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lattice_bpd import _core

WORK = r"""
import sys, tempfile, pathlib
for name in sys.argv[1].split(","):
    __import__(name)
import numpy as np
import lattice_bpd as lb
texts = [[0, 1, 2, 3] * 5, [1, 2, 0, 0, 3], [3, 1, 2]] * 4
import warnings; warnings.simplefilter("ignore")
lm = lb.NGramLM.train(texts, 3, vocab_size=5)
logits = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
drafts = lb.rescore_lattice(logits, [1], lm, top_k=4, num_drafts=7)
best, score = drafts.token_ids[0, 0].tolist(), float(drafts.scores[0, 0])
if "pywrapfst" in sys.modules:
    import pywrapfst as fst
    lattice = lb.SausageLattice.from_logits(logits, top_k=4).to_pywrapfst().arcsort()
    path = fst.shortestpath(fst.compose(lattice, lm.to_pywrapfst([1], expand_failures=True)))
    cost, tokens, state = 0.0, [], path.start()
    while path.num_arcs(state):
        (arc,) = path.arcs(state)
        cost, state = cost + float(arc.weight), arc.nextstate
        tokens.append(arc.ilabel - 1)
    assert tokens == best and abs(cost + score) < 1e-4, (tokens, best, cost, score)
    try:
        fst.Fst.read_from_string(b"nonsense")
    except Exception as error:
        print("pywrapfst still raises", type(error).__name__)
if "kenlm" in sys.modules:
    import kenlm
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "lm.arpa")
        lm.to_arpa(path)
        ours = lm.score(texts[0], eos=True).sum() / np.log(10)
        theirs = kenlm.Model(path).score(" ".join(map(str, texts[0])))
        assert abs(ours - theirs) < 1e-3, (ours, theirs)
if "torch" in sys.modules:
    import torch
    again = lb.rescore_lattice(torch.from_numpy(logits), [1], lm, top_k=4, num_drafts=7)
    assert again.token_ids[0, 0].tolist() == best
    assert float((torch.ones(9, 9) @ torch.ones(9, 9)).sum()) == 729
print("done")
"""

ORDERS = [
    "lattice_bpd,pywrapfst",
    "pywrapfst,lattice_bpd",
    "kenlm,lattice_bpd,pywrapfst",
    "lattice_bpd,kenlm",
    "torch,pywrapfst,lattice_bpd,kenlm",
    "lattice_bpd,pywrapfst,kenlm,torch",
    "pywrapfst,torch,kenlm,lattice_bpd",
]


@pytest.mark.parametrize("order", ORDERS)
def test_import_orders(order: str) -> None:
    missing = [name for name in order.split(",") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    done = subprocess.run(
        [sys.executable, "-c", WORK, order], capture_output=True, text=True, timeout=120
    )
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


def test_the_module_links_to_no_openfst() -> None:
    ldd = shutil.which("ldd")
    if ldd is None:
        pytest.skip("ldd is not installed")
    listed = subprocess.run([ldd, _core.__file__], capture_output=True, text=True, check=True)
    assert "libfst" not in listed.stdout
