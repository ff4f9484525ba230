"""The LMs of a domain (paper appendix D) and the grid of weights (appendix E), by hand."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from lattice_bpd import NGramLM
from lattice_bpd_kim2024.demo.model_folder import RESCORER_FOLDER, load_demo_model
from lattice_bpd_kim2024.demo.quick import _domain_lms

ROOT = Path(__file__).resolve().parents[3]
VOCAB, KNOWN, UNSEEN = 9, 6, 8  # token 7 occurs in the general text only, 6 in held-out rows, too
IN_DOMAIN, KATZ, MIXTURE = "in-domain", "in-domain Katz", "in-domain Katz + general unigrams"


@pytest.fixture(scope="module")
def rows() -> list[np.ndarray]:
    """40 texts of a domain; those that weights are tuned on have a token that the others lack."""
    rng = np.random.default_rng(5)
    chances = np.array([0.35, 0.25, 0.2, 0.12, 0.06, 0.02])
    texts = [rng.choice(KNOWN, size=12, p=chances) for _ in range(40)]
    for text in texts[:4]:
        text[[3, 8]] = KNOWN
    return texts


@pytest.fixture(scope="module")
def general() -> NGramLM:
    rng = np.random.default_rng(6)
    return NGramLM.train([rng.integers(0, 8, size=12) for _ in range(60)], 1, vocab_size=VOCAB)


@pytest.fixture(scope="module")
def lms(rows, general) -> dict[str, NGramLM]:
    demo = SimpleNamespace(
        lm=SimpleNamespace(order=2), model=SimpleNamespace(vocab_size=VOCAB)
    )  # fmt: skip
    return _domain_lms(demo, rows, general)


def count_bigrams(rows) -> dict[int, dict[int, int]]:
    """Successors of each token, END after a text's last."""
    counts: dict[int, dict[int, int]] = {}
    for row in rows:
        for token, after in zip(row.tolist(), [*row[1:].tolist(), -1], strict=True):
            of_token = counts.setdefault(token, {})
            of_token[after] = of_token.get(after, 0) + 1
    return counts


def test_unseen_tokens_of_a_domain_cost_1000(lms):
    assert list(lms) == [IN_DOMAIN, KATZ, MIXTURE]
    for name in (IN_DOMAIN, KATZ):
        for token in (7, UNSEEN):
            assert lms[name].log_prob(token, bos=False) == pytest.approx(-1000.0)
        assert lms[name].log_prob(6, bos=False) > -10.0  # seen in four rows
    assert lms[MIXTURE].log_prob(7, bos=False) > -10.0
    assert lms[MIXTURE].log_prob(UNSEEN, bos=False) == pytest.approx(-1000.0, abs=0.5)


@pytest.mark.filterwarnings("ignore::lattice_bpd.lm.SmoothingWarning")  # of so little text
def test_general_unigrams_have_the_weight_that_suits_held_out_texts(lms, rows, general):
    """The mixture of the LM of all rows, by weights that EM finds with one of the other rows."""
    held, kept = rows[:4], rows[4:]
    part = NGramLM.train(kept, 2, vocab_size=VOCAB)
    events = [np.exp([lm.score(row, eos=True) for lm in (part, general)]).T for row in held]
    chances, weights = np.concatenate(events), np.full(2, 0.5)
    for _ in range(2000):
        shares = weights * chances
        weights = (shares / shares.sum(axis=1, keepdims=True)).mean(axis=0)
    assert 0.1 < weights[1] < 0.9
    mixture, katz = lms[MIXTURE], lms[KATZ]
    listed = [((), token) for token in range(8)]
    listed += [
        ((h,), w) for h, successors in count_bigrams(rows).items() for w in successors if w >= 0
    ]
    for context, token in listed:
        inside = math.exp(katz.log_prob(token, context, bos=False))
        outside = math.exp(general.log_prob(token, bos=False))
        expected = math.log(weights[0] * inside + weights[1] * outside)
        assert mixture.log_prob(token, context, bos=False) == pytest.approx(expected, abs=2e-3)
    swapped = weights[1] * math.exp(katz.log_prob(0, bos=False)) + weights[0] / 8
    assert abs(mixture.log_prob(0, bos=False) - math.log(swapped)) > 0.05


def test_the_demo_model_ships_a_rescorer():
    """Without it evaluate --quick would have no neural rows, and say nothing."""
    demo = load_demo_model(None)
    assert demo.directory == ROOT / "examples" / "demo_model"
    assert demo.rescorer == demo.directory / RESCORER_FOLDER
    assert (demo.rescorer / "model.safetensors").is_file()
