"""The LM: queries by the definition, files of every format that give it back."""

import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_bpd import FormatError, NGramLM
from lattice_bpd.lm.convert import FORMATS, describe_lm, read_lm, write_lm
from oracles import random_arpa, read_arpa

BOS, EOS = -1, -2


def train(rng: np.random.Generator, order: int, vocab_size: int, **options: Any) -> NGramLM:
    """An LM of skewed random text, so that many n-grams recur and many are missing."""
    texts = [
        (vocab_size * rng.random(rng.integers(1, 40)) ** 3).astype(np.int32) for _ in range(60)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return NGramLM.train(texts, order, vocab_size=vocab_size, **options)


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


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_files_give_the_model_back(
    seed: int, rng: np.random.Generator, tmp_path: Path, words: bool
) -> None:
    ids = {"bos_id": 3 if seed % 2 else None, "eos_id": seed % 4 or None}
    lm = train(rng, 1 + seed % 6, 20, **ids)
    vocab = [f"w{i}é" for i in range(20)] if words else None
    lm.save(tmp_path / "a.lm")
    write_lm(lm, tmp_path / "a.arpa", vocab=vocab)
    loaded = NGramLM.load(tmp_path / "a.lm", verify=bool(seed % 2))
    again = read_lm(tmp_path / "a.arpa", vocab_size=20, vocab=vocab, **ids)
    for copy in (loaded, again):
        copy.save(str(tmp_path / "b.lm"))
        assert (tmp_path / "a.lm").read_bytes() == (tmp_path / "b.lm").read_bytes()
    text = rng.integers(0, 20, 300)
    np.testing.assert_array_equal(loaded.score(text, eos=True), lm.score(text, eos=True))


def test_saving_over_the_file_in_use(rng: np.random.Generator, tmp_path: Path) -> None:
    path, link = tmp_path / "a.lm", tmp_path / "link.lm"
    link.symlink_to("a.lm")
    train(rng, 3, 20).save(link)
    assert link.is_symlink()
    mapped = NGramLM.load(path)
    before = mapped.score(range(20))
    train(rng, 2, 30).save(path)
    mapped.save(tmp_path / "b.lm")
    np.testing.assert_array_equal(mapped.score(range(20)), before)
    np.testing.assert_array_equal(NGramLM.load(tmp_path / "b.lm").score(range(20)), before)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["a.lm", "b.lm", "link.lm"]  # no leftover files


@pytest.fixture(scope="module")
def lm() -> NGramLM:
    rng = np.random.default_rng(0)
    corpus = [rng.zipf(1.5, size=9).clip(max=4).astype(np.int32) for _ in range(300)]
    return NGramLM.train(corpus, 3, vocab_size=5, smoothing="witten_bell")


def every_score(lm: NGramLM) -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.concatenate([lm.score(rng.integers(0, 5, 12), eos=True) for _ in range(40)])


@pytest.mark.parametrize("to", FORMATS)
def test_every_format_reads_back(lm, to, tmp_path):
    path = tmp_path / f"x.{to}"
    write_lm(lm, path, to=to)
    again = read_lm(path, vocab_size=5)
    assert np.allclose(every_score(again), every_score(lm), atol=2e-6)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("kind", ["vector", "const"])
def test_epsilon_backoff_of_another_toolkit(lm, kind, tmp_path):
    pywrapfst = pytest.importorskip("pywrapfst")
    fst = lm.to_pywrapfst(end_of_sentence=True)
    fst.relabel_pairs(ipairs=[(lm.failure_label, 0)], opairs=[(lm.failure_label, 0)])
    pywrapfst.convert(fst, kind).write(str(tmp_path / "epsilon.fst"))
    again = read_lm(tmp_path / "epsilon.fst", vocab_size=5)
    assert np.allclose(every_score(again), every_score(lm), atol=2e-6)
    assert again.num_ngrams == lm.num_ngrams


def test_what_is_wrong_with_an_fst_is_said(lm, tmp_path):
    path = tmp_path / "x.fst"
    write_lm(lm, path)
    with pytest.raises(ValueError, match="expected vocab_size or vocab"):
        read_lm(path)
    with pytest.raises(FormatError, match="without a failure arc"):
        read_lm(path, vocab_size=9)
    with pytest.raises(FormatError, match=r"has label 5; expected 1\.\.4"):
        read_lm(path, vocab_size=1, failure_label=lm.failure_label)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(FormatError, match="no OpenFst file"):
        read_lm(path, vocab_size=5)


class WittenBell:
    """P(w | h) = (c(h w) + T(h) P(w | h')) / (c(h) + T(h)), from the counts of a text."""

    def __init__(self, texts: list[np.ndarray], order: int) -> None:
        self.following: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for text in texts:
            words = [BOS, *text.tolist(), EOS]
            for at in range(1, len(words)):
                for first in range(max(0, at + 1 - order), at + 1):
                    self.following[tuple(words[first:at])][words[at]] += 1

    def prob(self, history: tuple[int, ...], word: int) -> float:
        counts = self.following.get(history)
        if not history:
            return counts[word] / counts.total()
        lower = self.prob(history[1:], word)
        if counts is None:
            return lower
        return (counts[word] + len(counts) * lower) / (counts.total() + len(counts))


@pytest.mark.parametrize("vocab_size", [300, 70_000])
def test_values_of_every_storage_width(
    vocab_size: int, rng: np.random.Generator, tmp_path: Path
) -> None:
    """Keys of 2 and 4 bytes; codes and floats; few children and more than 65,535."""
    texts = [np.array([0, token]) for token in range(vocab_size)]
    texts += [rng.zipf(1.3, 60).astype(np.int64) % vocab_size for _ in range(1500)]
    lm = NGramLM.train(texts, 3, vocab_size=vocab_size, smoothing="witten_bell")
    oracle = WittenBell(texts, 3)
    queries = [texts[int(row)] for row in rng.integers(len(texts), size=60)]
    queries += [rng.integers(0, vocab_size, 40) for _ in range(20)]
    for text in queries:
        words = (BOS, *text.tolist(), EOS)
        expected = [
            np.log(oracle.prob(words[max(0, at - 2) : at], words[at]))
            for at in range(1, len(words))
        ]
        np.testing.assert_allclose(lm.score(text, eos=True), expected, rtol=1e-5, atol=1e-5)
    for bits in (8, 12, 16):
        small = lm.quantize(bits)
        small.save(tmp_path / "small.lm")
        levels = describe_lm(tmp_path / "small.lm").levels
        limit = max(level["log_prob_error"] for level in levels)
        limit += sum(level["backoff_error"] for level in levels)
        assert limit > 0 or bits > 8
        loaded = NGramLM.load(tmp_path / "small.lm")
        for text in queries:
            scores = small.score(text)
            assert np.abs(scores - lm.score(text)).max() <= limit + 1e-5
            np.testing.assert_array_equal(loaded.score(text), scores)
    with pytest.raises(ValueError, match="bits is 7; expected 8, 12 or 16"):
        lm.quantize(7)
