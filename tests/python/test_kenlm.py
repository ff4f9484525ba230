"""KenLM reads the ARPA text that we write and gives our probabilities."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_bpd import NGramLM

kenlm = pytest.importorskip("kenlm")


def train(rng: np.random.Generator, order: int, vocab_size: int, **options: Any) -> NGramLM:
    texts = [
        ((vocab_size - 2) * rng.random(rng.integers(1, 60)) ** 3).astype(np.int32)
        for _ in range(80)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return NGramLM.train(texts, order, vocab_size=vocab_size, **options)


def scores_of(model: "kenlm.Model", text: np.ndarray, bos: bool) -> np.ndarray:
    line = " ".join(str(token) for token in text)
    return np.array([p for p, _, _ in model.full_scores(line, bos=bos, eos=True)])


@pytest.mark.parametrize("order", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("seed", range(3))
def test_kenlm_agrees(seed: int, rng: np.random.Generator, order: int, tmp_path: Path) -> None:
    min_counts = [1, 1, 2, 2, 2, 2][:order] if seed == 1 else None
    lm = train(rng, order, 40, min_counts=min_counts)
    lm.to_arpa(tmp_path / "lm.arpa")
    model = kenlm.Model(str(tmp_path / "lm.arpa"))
    assert model.order == lm.order
    queries = 0
    for _ in range(40):
        seen = (38 * rng.random(50) ** 3).astype(np.int32)  # ids 38 and 39 have cost 1000
        text = np.where(rng.random(50) < 0.05, rng.integers(0, 40, 50), seen)
        for bos in (True, False):
            ours = lm.score(text, bos=bos, eos=True) / np.log(10)
            theirs = scores_of(model, text, bos)
            usual = ours > -100
            np.testing.assert_allclose(ours[usual], theirs[usual], rtol=0, atol=1e-5)
            np.testing.assert_allclose(ours[~usual], theirs[~usual], rtol=1e-6)
            queries += len(ours)
    assert queries == 4080


def test_words(rng: np.random.Generator, tmp_path: Path) -> None:
    lm = train(rng, 3, 30)
    vocab = [f"ẅ{token}" for token in range(30)]
    lm.to_arpa(tmp_path / "lm.arpa", vocab=vocab)
    model = kenlm.Model(str(tmp_path / "lm.arpa"))
    text = (28 * rng.random(200) ** 3).astype(np.int32)
    theirs = [p for p, _, _ in model.full_scores(" ".join(vocab[t] for t in text))]
    np.testing.assert_allclose(lm.score(text, eos=True) / np.log(10), theirs, atol=1e-5)


def test_named_boundaries(rng: np.random.Generator, tmp_path: Path) -> None:
    lm = train(rng, 3, 30, bos_id=28, eos_id=29)
    lm.to_arpa(tmp_path / "lm.arpa")
    model = kenlm.Model(str(tmp_path / "lm.arpa"))
    text = (28 * rng.random(200) ** 3).astype(np.int32)
    ours = lm.score(text, eos=True) / np.log(10)
    np.testing.assert_allclose(ours, scores_of(model, text, True), atol=1e-5)
