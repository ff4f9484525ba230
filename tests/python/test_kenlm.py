"""KenLM reads the ARPA text that we write and gives our probabilities."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_bpd import NGramLM, rescore_lattice
from lattice_bpd.lm import read_arpa_words, read_lm, write_lm

kenlm = pytest.importorskip("kenlm")


def train(rng: np.random.Generator, order: int, vocab_size: int, **options: Any) -> NGramLM:
    texts = [
        ((vocab_size - 2) * rng.random(rng.integers(1, 60)) ** 3).astype(np.int32)
        for _ in range(80)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return NGramLM.train(texts, order, vocab_size=vocab_size, **options)


def scores_of(model: "kenlm.Model", text: Any, bos: bool) -> np.ndarray:
    line = " ".join(str(token) for token in text)
    return np.array([p for p, _, _ in model.full_scores(line, bos=bos, eos=True)])


@pytest.mark.parametrize("order", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("seed", range(3))
def test_kenlm_agrees(seed: int, rng: np.random.Generator, order: int, tmp_path: Path) -> None:
    min_counts = [1, 1, 2, 2, 2, 2][:order] if seed == 1 else None
    lm = train(rng, order, 40, min_counts=min_counts)
    write_lm(lm, tmp_path / "lm.arpa")
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


WORDS = [f"ẅ{token}" for token in range(20)]
LISTED = 16  # words of the file; ids 16..19 are <unk>
UNKNOWN = 9  # stands for <unk> in the training text


def write_open_arpa(
    rng: np.random.Generator, path: Path, order: int, *, decimal: bool, unk: str = "<unk>"
) -> None:
    """An LM with n-grams of <unk> of every order; most ids above LISTED have no unigram."""
    lm = train(rng, order, LISTED + 2, unk_id=UNKNOWN, smoothing="witten_bell")
    write_lm(lm, path, vocab=["<unk>" if i == UNKNOWN else WORDS[i] for i in range(LISTED + 2)])
    lines = path.read_text().replace("<unk>", unk).splitlines()
    unseen = [line for line in lines if line.split("\t")[1:2] in ([WORDS[16]], [WORDS[17]])]
    assert len(unseen) == 2  # of cost 1000
    text = "\n".join(line for line in lines if line not in unseen)
    text = text.replace(f"ngram 1={LISTED + 4}\n", f"ngram 1={LISTED + 2}\n")
    path.write_text((text.replace("ẅ", "") if decimal else text) + "\n")
    assert all(f"{unk} " in text.split(f"\\{n}-grams")[1] for n in range(2, order + 1))


@pytest.mark.filterwarnings("ignore:.* token ids are not among its words")
@pytest.mark.parametrize("decimal", [True, False])
@pytest.mark.parametrize("order", [2, 3, 5])
@pytest.mark.parametrize("unk", ["<unk>", "<UNK>"])
def test_ids_outside_the_file_are_unk(
    rng: np.random.Generator, order: int, decimal: bool, unk: str, tmp_path: Path
) -> None:
    path = tmp_path / "open.arpa"
    write_open_arpa(rng, path, order, decimal=decimal, unk=unk)
    model = kenlm.Model(str(path))
    words = [word.replace("ẅ", "") if decimal else word for word in WORDS]
    options: dict[str, Any] = {"vocab_size": 20} if decimal else {"vocab": words}
    lm = read_lm(path, **options)
    lm.save(tmp_path / "lm")
    write_lm(lm, tmp_path / "again.arpa", **({} if decimal else {"vocab": words}))
    again = read_lm(tmp_path / "again.arpa", **options)
    copies = [NGramLM.load(tmp_path / "lm"), again, lm.quantize(16)]
    for _ in range(20):
        text = rng.integers(0, 20, 40)  # UNKNOWN is an id without a word too
        theirs = scores_of(model, [words[token] for token in text], True)
        for one in (lm, *copies):
            ours = one.score(text, eos=True) / np.log(10)
            np.testing.assert_allclose(ours, theirs, atol=1e-3 if one is copies[-1] else 1e-5)
        expected = model.score(" ".join(words[t] for t in text[-4:]), bos=False, eos=False)
        ours = sum(lm.log_prob(text[i], text[-4:][: i + 4], bos=False) for i in range(-4, 0))
        assert ours / np.log(10) == pytest.approx(expected, abs=1e-5)
        assert lm.evaluate([text]).log_prob / np.log(10) == pytest.approx(sum(theirs), abs=1e-3)


@pytest.mark.parametrize("engine", ["fused", "openfst"])
def test_searches_take_ids_outside_the_file_as_unk(
    rng: np.random.Generator, engine: str, tmp_path: Path
) -> None:
    path = tmp_path / "open.arpa"
    write_open_arpa(rng, path, 3, decimal=True)
    model = kenlm.Model(str(path))
    lm = read_lm(path, vocab_size=20)
    for _ in range(10):
        logits = rng.normal(size=(3, 20)).astype(np.float32)
        context = rng.integers(0, 20, 3)
        drafts = rescore_lattice(
            logits, context, lm, top_k=8, num_drafts=8**3, alpha=0.5, engine=engine
        )
        assert drafts.counts[0] == 8**3
        before = model.score(" ".join(map(str, context)), bos=True, eos=False)
        for draft, score in zip(drafts.token_ids[0], drafts.scores[0], strict=True):
            text = " ".join(map(str, [*context, *draft]))
            log_prob = (model.score(text, bos=True, eos=False) - before) * np.log(10)
            expected = logits[np.arange(3), draft].sum() + 0.5 * log_prob
            assert score == pytest.approx(expected, abs=1e-4)


def test_white_space_that_arpa_words_may_have(tmp_path: Path) -> None:
    lm = NGramLM.train([[0, 1, 2, 1, 0]] * 3, 2, vocab_size=3, smoothing="witten_bell")
    words = ["a\vb", "\f", "c\u2028\x85d"]
    write_lm(lm, tmp_path / "lm.arpa", vocab=words)
    again = read_lm(tmp_path / "lm.arpa", vocab=words)
    assert read_arpa_words(tmp_path / "lm.arpa") == words
    model = kenlm.Model(str(tmp_path / "lm.arpa"))
    state, after = kenlm.State(), kenlm.State()
    model.BeginSentenceWrite(state)
    for token, log_prob in zip([1, 2, 0], again.score([1, 2, 0]), strict=True):
        theirs = model.BaseScore(state, words[token], after)
        assert theirs * np.log(10) == pytest.approx(log_prob, abs=1e-5)
        state, after = after, kenlm.State()
