"""No file and no argument ends the process: the nastiest run in processes of their own."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import lattice_bpd

FUZZ = r"""
import json, sys, warnings
from pathlib import Path
import numpy as np
from lattice_bpd import FormatError, NGramLM, rescore_lattice
from lattice_bpd.lm import write_lm
warnings.simplefilter("ignore")
target = sys.argv[1]
rng = np.random.default_rng(4)
texts = [(30 * rng.random(40) ** 2).astype(np.int32) for _ in range(25)]
NGramLM.train(texts, 4, vocab_size=30).save(target)
good = Path(target).read_bytes()
start = 64 + 32 * int(np.frombuffer(good, np.uint32, 1, 36)[0])  # of the sections
logits = np.zeros((3, 30), np.float32)
answered = 0
for seed in range(600):
    print("seed", seed, file=sys.stderr, flush=True)
    rng = np.random.default_rng(seed)
    data = bytearray(good)
    at, value = int(rng.integers(start, len(data))), int(rng.choice([0, 0x7f, 0x80, 0xff]))
    if seed % 4 == 0:      # a few bits anywhere
        for at in rng.integers(0, len(data), rng.integers(1, 4)):
            data[at] ^= 1 << int(rng.integers(8))
    elif seed % 4 == 1:    # random bytes among the sections
        for at in rng.integers(start, len(data), rng.integers(1, 200)):
            data[at] = int(rng.integers(256))
    elif seed % 4 == 2:    # a stretch of one value: 0xff.. are NaN and the largest index
        size = min(int(rng.integers(1, 600)), len(data) - at)
        data[at:at + size] = bytes([value]) * size
    else:                  # cut, or made longer
        data = data[:int(rng.integers(len(data)))] + bytes(int(rng.integers(3)) * 100)
    Path(target).write_bytes(data)
    try:
        lm = NGramLM.load(target, verify=False)
    except FormatError as error:
        assert target in str(error), error
        continue
    works = [
        lambda: lm.score(rng.integers(0, lm.vocab_size, 50) % 30, eos=True),
        lambda: lm.log_prob(3, [1, 2, 3]),
        lambda: rescore_lattice(logits, [1, 2], lm, top_k=4, num_drafts=9),
        lambda: rescore_lattice(logits, [1, 2], lm, top_k=4, num_drafts=9, engine="openfst"),
        lambda: lm._core.to_fst_bytes(np.zeros(0, np.int32), True, False, True),
    ]
    if seed % 10 == 0:  # these wait for the disk
        works += [lambda: write_lm(lm, target + ".arpa"), lambda: lm.save(target + ".again")]
    for work in works:
        try:
            work()
            answered += 1
        except ValueError:
            pass
print(answered)
"""

NASTY = r"""
import sys, warnings
from pathlib import Path
import numpy as np
import lattice_bpd as lb
from lattice_bpd import _core
from lattice_bpd.lm import read_lm, write_lm
warnings.simplefilter("ignore")
lm = lb.NGramLM.train([[0, 1, 2, 3, 4]] * 9, 4, vocab_size=5)
zeros = np.zeros((3, 5), np.float32)
folder = Path(sys.argv[1])  # nothing is written anywhere else
biggest = np.finfo(np.float32).max
def write(name, data):
    (folder / name).write_bytes(data)
    return folder / name
def arpa(text):
    return read_lm(write("a", text))
head = b"\\data\\\nngram 1=1\n"
ids32, floats = np.zeros((1, 1, 1), np.int32), np.zeros((1, 1, 1), np.float32)
offsets, none = np.array([0, 0]), np.zeros(0, np.int32)
candidates = lambda contexts, at: _core.rescore(
    (ids32, floats), lm._core, contexts, np.array(at), True, 1, 1.0, "auto", 1)
answered = [
    lambda: lb.rescore_lattice(np.full((3, 5), biggest), [0], lm, top_k=5, num_drafts=9),
    lambda: lb.rescore_lattice(-np.full((9, 5), biggest), [0], lm, top_k=5, num_drafts=99),
    lambda: lb.rescore_lattice(zeros, [0], lm, top_k=5, num_drafts=7, alpha=5e-324),
    lambda: lb.rescore_lattice(zeros, list(range(5)) * 100000, lm, top_k=2),
    lambda: lb.SausageLattice([([2**31 - 1, 0], [0, 0])] * 3)._core.to_fst_bytes(),
    lambda: candidates(none, [0, 0]),
    lambda: arpa(head + b"\\1-grams:\n-1 0 1e29\n\\end\\"),
    lambda: arpa(head + b"\\1-grams:\n-1 2097151\n\\end\\"),
]
refused = [
    ("out of a float's range", lambda: lb.rescore_lattice(zeros, [0], lm, top_k=5, alpha=10**400)),
    ("offsets 0..7 of row 0 do not fit", lambda: candidates(none, [0, 7])),
    ("offsets -5..0 of row 0 do not fit", lambda: candidates(none, [-5, 0])),
    ("of row 0 do not fit", lambda: candidates(none, [0, 2**62])),
    ("1 offsets for 1 lattices", lambda: candidates(none, [0])),
    ("token id -9 at position 0", lambda: candidates(np.array([-9], np.int32), [0, 1])),
    ("elements of 4 bytes as float16", lambda: _core.select_top_k(zeros, "float16", 2, False)),
    ("1 dimensions; expected 2 or 3",
     lambda: _core.select_top_k(zeros.reshape(-1), "float32", 2, False)),
    ("top_k is -2147483648", lambda: _core.select_top_k(zeros, "float32", -2**31, False)),
    ("the file ends in the 1-grams", lambda: arpa(head + b"\\1-grams:\n-1 " + b"9" * 100000)),
    ("a:4: ", lambda: arpa(head + b"\\1-grams:\n" + b"- " * 100000)),
    ("the file ends in the 2-grams",
     lambda: arpa(head + b"ngram 2=4294967294\n\\1-grams:\n-1 0\n\\2-grams:\n")),
    ("a:2: ", lambda: arpa(head.replace(b"=1", b"=99999999999999999999"))),
    ("another byte order", lambda: lb.NGramLM.load(write("b", b"LBPD-LM\n" + b"\xff" * 500))),
    ("fewer than an LM's header", lambda: lb.NGramLM.load("/proc/self/mem")),
    ("cannot create a temporary file", lambda: write_lm(lm, folder / ("x" * 300), to="arpa")),
]
for number, call in enumerate(answered):
    print("answered", number, file=sys.stderr, flush=True)
    call()
for number, (message, call) in enumerate(refused):
    print("refused", number, message, file=sys.stderr, flush=True)
    try:
        call()
    except (ValueError, OSError) as error:
        assert message in str(error), error
    else:
        raise AssertionError("not refused")
print("alive")
"""


# Calls that could run code of a file, and the options that forbid it.
LOADERS = {
    "torch.load": ("weights_only", {"True"}),
    "np.load": ("allow_pickle", {None, "False"}),  # False unless given
}
PICKLES = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}


def run(code: str, *arguments: object, timeout: float = 100) -> str:
    """Runs Python code in a process of its own; its last stderr line says where it ended."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    tail = "\n".join(done.stderr.splitlines()[-12:])
    assert done.returncode == 0, f"exit status {done.returncode}; the last lines:\n{tail}"
    return done.stdout


def test_damaged_files_that_are_not_verified(tmp_path: Path) -> None:
    """lm_file_test.cc has checksums."""
    assert int(run(FUZZ, tmp_path / "damaged.lm")) > 250


def test_nasty_calls(tmp_path: Path) -> None:
    assert run(NASTY, tmp_path).endswith("alive\n")


def test_nothing_unpickles_code() -> None:
    package = Path(lattice_bpd.__file__).parent
    calls, pickles = [], []
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in LOADERS:
                calls.append((path.name, node))
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = [alias.name for alias in node.names] + [getattr(node, "module", None)]
                pickles += [path.name for module in modules if module in PICKLES]
    assert not pickles
    assert calls  # or the test searches for the wrong names
    for name, call in calls:
        options = {option.arg: ast.unparse(option.value) for option in call.keywords}
        option, allowed = LOADERS[ast.unparse(call.func)]
        assert options.get(option) in allowed, f"{name}:{call.lineno}"
