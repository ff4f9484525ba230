"""Laws of the LM: distributions sum to 1, queries agree with each other, files give it back."""

import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_bpd import NGramLM
from oracles import LN10, random_arpa, read_arpa

UNSEEN = -999.0  # entries below have cost 1000, see NGramLM.train


def train(rng: np.random.Generator, order: int, vocab_size: int, **options: Any) -> NGramLM:
    """An LM of skewed random text, so that many n-grams recur and many are missing."""
    texts = [
        (vocab_size * rng.random(rng.integers(1, 40)) ** 3).astype(np.int32) for _ in range(60)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return NGramLM.train(texts, order, vocab_size=vocab_size, **options)


def random_histories(rng: np.random.Generator, lm: NGramLM) -> Iterator[list[int]]:
    """All histories of length 0 and 1, then random ones."""
    yield []
    for token in range(lm.vocab_size):
        yield [token]
    for _ in range(60):
        length = int(rng.integers(2, 7))
        yield (lm.vocab_size * rng.random(length) ** 3).astype(int).tolist()


@pytest.mark.parametrize("seed", range(12))
def test_every_history_sums_to_one(seed: int, rng: np.random.Generator) -> None:
    min_counts = None if seed % 3 else [1, 1, 2, 2, 3][: 1 + seed % 5]
    lm = train(rng, 1 + seed % 5, 15, min_counts=min_counts)
    for history, bos in itertools.product(random_histories(rng, lm), (True, False)):
        log_probs = [lm.log_prob(token, history, bos=bos) for token in range(lm.vocab_size)]
        log_probs.append(lm.score(history, bos=bos, eos=True)[-1])
        total = sum(np.exp(log_prob) for log_prob in log_probs if log_prob > UNSEEN)
        assert total == pytest.approx(1.0, abs=1e-4), (history, bos)


@pytest.mark.parametrize("seed", range(12))
def test_score_is_log_prob_token_by_token(seed: int, rng: np.random.Generator) -> None:
    lm = train(rng, 1 + seed % 6, 12)
    text = rng.integers(0, 12, 40)
    for bos in (True, False):
        scores = lm.score(text, bos=bos)
        assert scores.dtype == np.float64
        assert scores.shape == (40,)
        expected = [lm.log_prob(int(text[i]), text[:i], bos=bos) for i in range(40)]
        np.testing.assert_array_equal(scores, expected)
        with_eos = lm.score(text, bos=bos, eos=True)
        np.testing.assert_array_equal(with_eos[:-1], scores)
        assert with_eos.shape == (41,)


@pytest.mark.parametrize("seed", range(60))
def test_log_prob_is_the_definition(seed: int, rng: np.random.Generator, core_of: Any) -> None:
    vocab_size, closed = int(rng.integers(1, 10)), bool(rng.integers(2))
    text = random_arpa(rng, vocab_size, 1 + seed % 6, exact=bool(seed % 2), closed=closed)
    lm, oracle = core_of(text, vocab_size=vocab_size), read_arpa(text)
    for _ in range(40):
        context = rng.integers(0, vocab_size, rng.integers(0, 9)).tolist()
        token, bos = int(rng.integers(vocab_size)), bool(rng.integers(2))
        expected = oracle.log_prob(oracle.history(context, bos), token)
        assert lm.log_prob(token, context, bos=bos) == pytest.approx(expected, abs=1e-6)


def test_example_by_hand(small_lm: NGramLM) -> None:
    # the cat sat ran </s>, after <s>
    expected = [-0.2, -0.1, -0.45, -0.2 - 1.2, -1.0]
    np.testing.assert_allclose(
        small_lm.score([0, 1, 2, 3], eos=True), LN10 * np.array(expected), rtol=1e-6
    )
    assert small_lm.log_prob(2, [3, 1]) == pytest.approx(LN10 * -0.5)
    assert small_lm.log_prob(0, [0, 1]) == pytest.approx(LN10 * (-0.15 - 0.3 - 0.9))
    assert (small_lm.order, small_lm.vocab_size) == (3, 4)
    assert small_lm.num_ngrams == [7, 4, 2]  # <unk> has a unigram too
    assert repr(small_lm) == "NGramLM(order 3, vocabulary 4, n-grams 7 + 4 + 2)"


@pytest.mark.parametrize("seed", range(10))
def test_files_give_the_model_back(seed: int, rng: np.random.Generator, tmp_path: Path) -> None:
    lm = train(rng, 1 + seed % 6, 20, bos_id=3 if seed % 2 else None, eos_id=seed % 3 or None)
    lm.save(tmp_path / "a.lm")
    loaded = NGramLM.load(tmp_path / "a.lm", verify=bool(seed % 2))
    loaded.save(str(tmp_path / "b.lm"))
    assert (tmp_path / "a.lm").read_bytes() == (tmp_path / "b.lm").read_bytes()
    text = rng.integers(0, 20, 300)
    np.testing.assert_array_equal(loaded.score(text, eos=True), lm.score(text, eos=True))


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_arpa_gives_the_model_back(
    seed: int, rng: np.random.Generator, tmp_path: Path, words: bool
) -> None:
    ids = {"bos_id": 3 if seed % 2 else None, "eos_id": 1 + seed % 3}
    lm = train(rng, 1 + seed % 6, 20, **ids)
    vocab = [f"w{i}é" for i in range(20)] if words else None
    lm.save(tmp_path / "a.lm")
    lm.to_arpa(tmp_path / "a.arpa", vocab=vocab)
    again = NGramLM.from_arpa(tmp_path / "a.arpa", vocab_size=20, vocab=vocab, **ids)
    again.save(tmp_path / "b.lm")
    assert (tmp_path / "a.lm").read_bytes() == (tmp_path / "b.lm").read_bytes()


def test_saving_over_the_file_in_use(rng: np.random.Generator, tmp_path: Path) -> None:
    path = tmp_path / "a.lm"
    train(rng, 3, 20).save(path)
    mapped = NGramLM.load(path)
    before = mapped.score(range(20))
    train(rng, 2, 30).save(path)
    mapped.save(tmp_path / "b.lm")
    np.testing.assert_array_equal(mapped.score(range(20)), before)
    np.testing.assert_array_equal(NGramLM.load(tmp_path / "b.lm").score(range(20)), before)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.lm", "b.lm"]  # no leftover files
