"""lattice_bpd, pywrapfst, kenlm and torch in one process, in several orders of import.

What goes wrong here is a hang (two copies of OpenFst's flag registry), so each case is a process
of its own with a timeout: `test_coexistence.py NAMES` imports NAMES in their order. After each
import all that is there so far works, in the end in threads and across a fork.
"""

import importlib
import importlib.util
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from small_arpa import SMALL_ARPA

ORDERS = ["lattice_bpd,torch,kenlm", "lattice_bpd,pywrapfst,kenlm,torch",
          "torch,kenlm,pywrapfst,lattice_bpd", "pywrapfst,lattice_bpd"]  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
def test_import_orders(order: str) -> None:
    missing = [name for name in order.split(",") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    # A thread that ends just when another one forks holds a lock of MKL's memory pool, which torch
    # brings: its child would wait for it for ever. Without the pool there is no such lock.
    environment = {**os.environ, "MKL_DISABLE_FAST_MM": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, order],
        capture_output=True, text=True, timeout=120, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n")


def test_the_module_exports_its_init_function_only() -> None:
    from lattice_bpd import _core

    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm (binutils) is not installed")
    listed = subprocess.run(
        [nm, "-D", "--defined-only", _core.__file__], capture_output=True, text=True, check=True
    )
    symbols = [line.split()[-1] for line in listed.stdout.splitlines()]
    assert symbols == ["PyInit__core"]


def work_torch(torch):
    """Matrices and a gradient, in torch's threads."""
    weight = torch.ones(300, 300, requires_grad=True)
    (weight @ torch.ones(300, 300)).sum().backward()
    assert float(weight.grad.sum()) == 300.0**3


def work_kenlm(kenlm):
    """Reads ARPA text and scores with it."""
    with tempfile.NamedTemporaryFile("w", suffix=".arpa") as file:
        file.write(SMALL_ARPA.lstrip())
        file.flush()
        score = kenlm.Model(file.name).score("0 1", bos=True, eos=True)
    assert math.isclose(score, -0.2 - 0.1 - 0.15 - 0.3 - 1.0, abs_tol=1e-5), score


def work_pywrapfst(fst):
    """Composes, finds the shortest path, and still raises what it should."""
    compiler = fst.Compiler()
    compiler.write("0 1 1 1 0.5\n0 1 2 2 0.25\n1 2 3 3 1\n2\n")
    acceptor = compiler.compile()
    path = fst.shortestpath(fst.compose(acceptor, acceptor.copy().arcsort()))
    cost = sum(float(arc.weight) for state in path.states() for arc in path.arcs(state))
    assert math.isclose(cost, 2.5), cost
    with pytest.raises(fst.FstIOError):
        fst.Fst.read_from_string(b"nonsense")


def work_lattice_bpd(lb):
    """Both engines on several threads, and bytes that OpenFst alone would answer by ending."""
    import numpy as np

    lm = lb.NGramLM.train([[0, 1, 2, 3] * 5, [1, 2, 0, 0, 3]] * 4, 3, vocab_size=5,
                          smoothing="witten_bell")  # fmt: skip
    logits = np.random.default_rng(0).standard_normal((40, 3, 5)).astype(np.float32)
    options = {"top_k": 4, "num_drafts": 7, "alpha": 1.0}
    drafts = lb.rescore_lattice(logits, [[1]] * 40, lm, threads=2, **options)
    others = lb.rescore_lattice(logits, [[1]] * 40, lm, engine="openfst", **options)
    np.testing.assert_array_equal(drafts.token_ids, others.token_ids)
    np.testing.assert_array_equal(drafts.scores, others.scores)
    with pytest.raises(ValueError, match="no FST"):
        lb.rescore_fst(b"nonsense", lm)


def work(names):
    for name in names:
        globals()[f"work_{name}"](sys.modules[name])


def main(names):
    """Forks after threads worked. In the child torch does no work: its threads and locks do not
    survive a fork, and a matrix product of its own was seen to wait for ever."""
    warnings.simplefilter("ignore")
    for number, name in enumerate(names, 1):
        importlib.import_module(name)
        work(names[:number])
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [names] * 12))
    child = os.fork()
    if child == 0:
        signal.alarm(100)  # a child that hangs ends, which the parent sees
        names = [name for name in names if name != "torch"]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [names] * 12))
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print("done")


if __name__ == "__main__":
    main(sys.argv[1].split(","))
