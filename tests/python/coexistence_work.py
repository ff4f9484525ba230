"""Work with each of several libraries in one process; run by test_coexistence.py, not imported.

Usage: coexistence_work.py NAMES plain|fork

NAMES are imported in their order. After each import all that is there so far works, so that there
is work before, between and after the imports. Then `fork` works in four threads at once, forks, and
works in child and parent at the same time.
"""

import importlib
import math
import os
import signal
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor

from small_arpa import SMALL_ARPA


def work_numpy(numpy):
    """A matrix large enough for BLAS's threads."""
    ones = numpy.ones((300, 300))
    assert (ones @ ones).sum() == 300.0**3


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
    try:
        fst.Fst.read_from_string(b"nonsense")
    except fst.FstIOError:
        return
    raise AssertionError("pywrapfst read nonsense")


def work_lattice_bpd(lb):
    """Both engines on several threads, and bytes that OpenFst alone would answer by ending."""
    import numpy as np

    lm = lb.NGramLM.train([[0, 1, 2, 3] * 5, [1, 2, 0, 0, 3]] * 4, 3, vocab_size=5,
                          smoothing="witten_bell")  # fmt: skip
    logits = np.random.default_rng(0).standard_normal((40, 3, 5)).astype(np.float32)
    options = {"top_k": 4, "num_drafts": 7, "alpha": 1.0}
    drafts = lb.rescore_lattice(logits, [[1]] * 40, lm, threads=2, **options)
    assert drafts == lb.rescore_lattice(logits, [[1]] * 40, lm, engine="openfst", **options)
    try:
        lb.rescore_fst(b"nonsense", lm)
    except ValueError:
        pass
    else:
        raise AssertionError("rescore_fst read nonsense")
    if torch := sys.modules.get("torch"):
        rescored = lb.rescore_lattice(torch.from_numpy(logits[0]), [1], lm, **options)
        assert rescored.token_ids[0].tolist() == drafts.token_ids[0].tolist()


NAMES = ["numpy", "torch", "kenlm", "pywrapfst", "lattice_bpd"]


def work(_=0):
    """With all that is there."""
    for name in NAMES:
        if name in sys.modules:
            globals()[f"work_{name}"](sys.modules[name])


def work_in_threads():
    """In four threads at once, three times each."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(12)))


def work_in_child_and_parent():
    """Forks after threads worked. In the child torch is there but does no work: its threads and
    locks do not survive a fork, and a matrix product of its own was seen to wait for ever."""
    work_in_threads()
    child = os.fork()
    if child == 0:
        signal.alarm(100)  # a child that hangs ends, which the parent sees
        try:
            NAMES.remove("torch")
            work()
            work_in_threads()
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    work()
    work_in_threads()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with status {status}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for imported in sys.argv[1].split(","):
        importlib.import_module(imported)
        work()
    if sys.argv[2] == "fork":
        work_in_child_and_parent()
    print("done")
