"""Writes tests/data/fuzz: the small valid inputs that each fuzz target starts from.

python tests/fuzz/make_seeds.py    (after a change of a file format)
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pywrapfst

from lattice_bpd import NGramLM, SausageLattice
from lattice_bpd.cli import main as run_command
from lattice_bpd.lm import write_lm

OUT = Path(__file__).resolve().parents[1] / "data" / "fuzz"
TEXT = [[0, 1, 2, 3, 4, 0, 1, 2], [1, 2, 0, 1], [4, 4, 0, 1, 2, 3]]


def write(target: str, name: str, data: bytes) -> None:
    """One seed of a target."""
    (OUT / target).mkdir(parents=True, exist_ok=True)
    (OUT / target / name).write_bytes(data)


def fst_bytes(text: str) -> bytes:
    """An acceptor as pywrapfst compiles it."""
    compiler = pywrapfst.Compiler(acceptor=True)
    compiler.write(text)
    return bytes(compiler.compile().write_to_string())


def write_lm_seeds(folder: Path) -> None:
    """LM files and LMs as FSTs and ARPA text."""
    lm = NGramLM.train(TEXT, 3, vocab_size=5, smoothing="witten_bell")
    lm.save(folder / "fast.lm")
    run_command(
        ["ngram", "convert", str(folder / "fast.lm"), str(folder / "small.lm"), "--quantize", "8"]
    )
    lm.with_words(["a", "b", "é", "d", "0"]).save(folder / "words.lm")
    for name in ("fast.lm", "small.lm", "words.lm"):
        write("lm_file", name, (folder / name).read_bytes())
    for name, const in (("vector.fst", False), ("const.fst", True)):
        data = lm._core.to_fst_bytes(np.zeros(0, np.int32), True, False, True, const)
        write("lm_fst", name, bytes([4]) + bytes(data))
    write_lm(lm, folder / "arpa", to="arpa")
    for name, options in (("decimal.arpa", b"\x11"), ("named.arpa", b"\x12")):
        write("arpa", name, options + (folder / "arpa").read_bytes())


def write_count_seeds(folder: Path) -> None:
    """A counts file."""
    np.save(folder / "ids.npy", np.array(TEXT[0], np.int32))
    command = ["ngram", "count", str(folder / "ids.npy"), "--vocab-size", "5", "--order", "3"]
    run_command([*command, "-o", str(folder / "counts")])
    write("count_file", "counts", bytes([0x0A]) + (folder / "counts").read_bytes())


def write_lattice_seeds() -> None:
    """Acceptors: a sausage, and one that is neither deterministic nor free of epsilons."""
    sausage = SausageLattice([([0, 1], [2.0, 1.5]), ([2], [0.0])])
    write("acceptor", "sausage.fst", b"\x07" + bytes(sausage._core.to_fst_bytes()))
    write(
        "acceptor", "lattice.fst", b"\x0f" + fst_bytes("0 1 1 0.5\n0 1 1\n0 2 0 1\n1 2 3\n2 0.5\n")
    )


def main() -> None:
    """Writes every seed."""
    with tempfile.TemporaryDirectory() as name:
        write_lm_seeds(Path(name))
        write_count_seeds(Path(name))
    write_lattice_seeds()


if __name__ == "__main__":
    main()
