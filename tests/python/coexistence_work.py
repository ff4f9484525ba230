"""Work with each of several libraries in one process; run by test_coexistence.py, not imported.

Usage: coexistence_work.py NAMES plain|fork

NAMES are imported in their order. After each import all that is there so far works, so that there
is work before, between and after the imports. Then `fork` works in four threads at once, forks, and
works in child and parent at the same time.
"""

import faulthandler
import importlib
import math
import os
import signal
import sys
import tempfile
import threading
import warnings
from pathlib import Path

ARPA = """\\data\\
ngram 1=5
ngram 2=1

\\1-grams:
-99\t<s>\t0
-1\t</s>
-2\t<unk>
-0.5\ta\t0
-0.3\tb\t0

\\2-grams:
-0.1\ta b

\\end\\
"""


def is_there(name):
    return name in sys.modules


def work_numpy():
    """A matrix large enough for BLAS's threads."""
    numpy = sys.modules["numpy"]
    ones = numpy.ones((300, 300))
    assert (ones @ ones).sum() == 300.0**3


def work_torch():
    """Matrices and a gradient, in torch's threads."""
    torch = sys.modules["torch"]
    weight = torch.ones(300, 300, requires_grad=True)
    (weight @ torch.ones(300, 300)).sum().backward()
    assert float(weight.grad.sum()) == 300.0**3


def work_kenlm():
    """Reads ARPA text and scores with it."""
    kenlm = sys.modules["kenlm"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.arpa"
        path.write_text(ARPA)
        score = kenlm.Model(str(path)).score("a b", bos=True, eos=True)
    assert math.isclose(score, -0.5 - 0.1 - 1, abs_tol=1e-5), score  # a, then a b, then </s>


def work_pywrapfst():
    """Composes, finds the shortest path, and still raises what it should."""
    fst = sys.modules["pywrapfst"]
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


def make_job():
    """(LM, logits, drafts) of a batch that the core's threads share."""
    import numpy as np

    import lattice_bpd as lb

    texts = [[0, 1, 2, 3] * 5, [1, 2, 0, 0, 3], [3, 1, 2]] * 4
    lm = lb.NGramLM.train(texts, 3, vocab_size=5, smoothing="witten_bell")
    logits = np.random.default_rng(0).standard_normal((40, 3, 5)).astype(np.float32)
    drafts = lb.rescore_lattice(logits, [[1]] * 40, lm, top_k=4, num_drafts=7, threads=2, alpha=1.0)
    return lm, logits, drafts


def work_lattice_bpd():
    """Both engines, and a file that is none, which OpenFst alone would answer by ending."""
    import lattice_bpd as lb

    lm, logits, drafts = make_job()
    options = {"top_k": 4, "num_drafts": 7, "engine": "openfst", "alpha": 1.0}
    again = lb.rescore_lattice(logits, [[1]] * 40, lm, **options)
    assert (again.token_ids == drafts.token_ids).all()
    try:
        lb.rescore_fst(b"nonsense", lm)
    except ValueError:
        pass
    else:
        raise AssertionError("rescore_fst read nonsense")
    if is_there("torch"):
        torch = sys.modules["torch"]
        rescored = lb.rescore_lattice(
            torch.from_numpy(logits[0]), [1], lm, top_k=4, num_drafts=7, alpha=1.0
        )
        assert rescored.token_ids[0].tolist() == drafts.token_ids[0].tolist()


NAMES = ["numpy", "torch", "kenlm", "pywrapfst", "lattice_bpd"]


def work():
    """With all that is there."""
    for name in NAMES:
        if is_there(name):
            globals()[f"work_{name}"]()


def work_in_threads():
    """In four threads at once, three times each; the first error of a thread is raised here."""
    errors = []

    def body():
        try:
            for _ in range(3):
                work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def work_in_child_and_parent():
    """Forks after threads worked. In the child torch is there but does no work: its threads and
    locks do not survive a fork, and a matrix product of its own was seen to wait for ever."""
    work_in_threads()
    child = os.fork()
    if child == 0:
        faulthandler.register(signal.SIGALRM, chain=True)
        signal.alarm(100)  # a child that hangs prints its stack and exits, which the parent sees
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


def main():
    warnings.simplefilter("ignore")
    for name in sys.argv[1].split(","):
        importlib.import_module(name)
        work()
    if sys.argv[2] == "fork":
        work_in_child_and_parent()
    print("done")


if __name__ == "__main__":
    main()
