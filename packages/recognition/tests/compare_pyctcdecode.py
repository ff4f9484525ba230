"""Beams of pyctcdecode with kenlm and with our interface: the same, with the same scores.

scripts/test_pyctcdecode.sh [--cases N]    makes the environment and runs this in it
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

LABELS = [" ", *"abcdefghijklmnopqrstuvwxyz'", ""]  # the last is the blank
ATOL = 1e-3  # of beams' scores: kenlm's are float32 sums of log10, times alpha and ln 10


def load_pyctcdecode(kenlm: Any) -> Any:
    """A fresh import of pyctcdecode with this kenlm."""
    for name in [name for name in sys.modules if name.split(".")[0] == "pyctcdecode"]:
        del sys.modules[name]
    sys.modules["kenlm"] = kenlm
    import pyctcdecode

    assert pyctcdecode.language_model.kenlm is kenlm
    return pyctcdecode


def write_arpa(path: Path, rng: np.random.Generator, order: int) -> list[str]:
    """An LM of words of letters, as ARPA text."""
    from lattice_bpd import NGramLM
    from lattice_bpd.lm import write_lm

    letters = LABELS[1:-2]
    words = sorted({"".join(rng.choice(letters, rng.integers(1, 6))) for _ in range(200)})
    texts = [
        (len(words) * rng.random(rng.integers(2, 12)) ** 2).astype(np.int32) for _ in range(300)
    ]
    options = {"smoothing": "modified_kneser_ney", "unseen": "uniform"}
    lm = NGramLM.train(texts, order, vocab_size=len(words), **options)
    write_lm(lm, path, vocab=words)
    return words


def random_logits(rng: np.random.Generator) -> np.ndarray:
    """Log probabilities of frames without a text in them."""
    return log_softmax(rng.normal(0, 3, (int(rng.integers(5, 40)), len(LABELS))))


def made_logits(rng: np.random.Generator, words: list[str]) -> np.ndarray:
    """Log probabilities of frames of a text, with noise."""
    text = " ".join(rng.choice(words, rng.integers(1, 6)))
    frames = []
    for letter in text:
        frames += [LABELS.index(letter)] * int(rng.integers(1, 3)) + [len(LABELS) - 1]
    logits = rng.normal(0, 1.5, (len(frames), len(LABELS)))
    logits[np.arange(len(frames)), frames] += 5
    return log_softmax(logits)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    largest = logits.max(axis=-1, keepdims=True)
    return logits - largest - np.log(np.exp(logits - largest).sum(axis=-1, keepdims=True))


def beams_of(pyctcdecode: Any, path: Path, words: list[str], cases: list[Any]) -> list[Any]:
    """The beams of all cases: text and scores."""
    found = []
    for unigrams, alpha, beta, boundary in (
        (words, 0.5, 1.5, True), (None, 0.8, 0.0, True), (words[::2], 0.3, -0.5, False),
    ):  # fmt: skip
        decoder = pyctcdecode.build_ctcdecoder(
            LABELS, str(path), unigrams, alpha=alpha, beta=beta, lm_score_boundary=boundary
        )
        for logits in cases:
            beams = decoder.decode_beams(logits, beam_width=30)
            found.append([(beam[0], float(beam[3]), float(beam[4])) for beam in beams])
            # A text in two parts: states go from one call to the next.
            middle = len(logits) // 2
            first = decoder.decode_beams(logits[:middle], beam_width=30)
            second = decoder.decode_beams(
                logits[middle:], beam_width=30, lm_start_state=first[0][1]
            )
            found.append([(beam[0], float(beam[3]), float(beam[4])) for beam in second])
    return found


def compare(ours: list[Any], theirs: list[Any]) -> int:
    """Compares; returns the number of beams. Beams whose scores are nearly equal may swap."""
    number = 0
    for mine, other in zip(ours, theirs, strict=True):
        assert len(mine) == len(other)
        for scores in zip(*[[row[1:] for row in rows] for rows in (mine, other)], strict=True):
            assert np.allclose(*scores, atol=ATOL), scores
        for (a, _, score), (b, _, _) in zip(mine, other, strict=True):
            near = sum(abs(row[2] - score) < ATOL for row in other)
            assert a == b or near > 1, (a, b)
        number += len(mine)
    return number


def main() -> None:
    """Compares both on random and on made logits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=30, help="logits of each kind and order")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    import kenlm

    from lattice_bpd_recognition import install, kenlm_interface

    total = 0
    for order in (2, 3, 4):
        rng = np.random.default_rng(order)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "lm.arpa"
            words = write_arpa(path, rng, order)
            cases = [random_logits(rng) for _ in range(args.cases)]
            cases += [made_logits(rng, words) for _ in range(args.cases)]
            with contextlib.redirect_stderr(io.StringIO()):
                theirs = beams_of(load_pyctcdecode(kenlm), path, words, cases)
                for name in [name for name in sys.modules if name.startswith("pyctcdecode")]:
                    del sys.modules[name]
                install()
                assert sys.modules["kenlm"] is kenlm_interface
                ours = beams_of(load_pyctcdecode(kenlm_interface), path, words, cases)
        total += compare(ours, theirs)
        print(f"order {order}: {len(ours)} results, beams are the same")
    print(
        f"{total:,} beams with numpy {np.__version__}, kenlm and lattice_bpd_recognition: the same"
    )


if __name__ == "__main__":
    main()
