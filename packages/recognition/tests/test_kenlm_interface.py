"""KenLM's interface over our LMs: the numbers and states are those of kenlm itself."""

import copy
import gzip
import itertools
import math
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_bpd import FormatError, NGramLM
from lattice_bpd.lm import read_arpa_words
from lattice_bpd_recognition import kenlm_interface, read_word_lm
from lattice_bpd_recognition.kenlm_interface import Config, LoadMethod, Model, State, install
from word_models import SMALL, published_models, random_arpa, random_sentences

kenlm = pytest.importorskip("kenlm")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.arpa"
    path.write_text(SMALL, encoding="utf-8")
    return path


def test_scores_are_sums_that_anybody_can_add(small: Path) -> None:
    model = Model(str(small))
    assert model.order == 3
    assert model.path == bytes(small)
    # <s> the: -0.2; <s> the cat: -0.1; the cat sat: backoff(the cat) + cat sat; sat </s>: backoff
    # of "cat sat" is 1, of "sat" -0.2, then -1.0.
    expected = [(-0.2, 2, False), (-0.1, 3, False), (-0.15 - 0.5, 2, False), (-0.2 - 1.0, 1, False)]
    scores = list(model.full_scores("the cat sat"))
    np.testing.assert_allclose([s[0] for s in scores], [e[0] for e in expected], atol=1e-6)
    assert [s[1:] for s in scores] == [e[1:] for e in expected]
    assert model.score("the cat sat") == pytest.approx(-0.2 - 0.1 - 0.65 - 1.2, abs=1e-6)
    assert model.score("the cat", eos=False, bos=False) == pytest.approx(-0.9 - 0.3, abs=1e-6)
    assert model.perplexity("the cat sat") == pytest.approx(10 ** (2.15 / 4), rel=1e-6)
    np.testing.assert_allclose(model.scores(["the cat sat", ""]), [-2.15, -1.1], atol=1e-6)


def test_what_is_in_the_model(small: Path) -> None:
    ours, theirs = Model(str(small)), kenlm.Model(str(small))
    for word in ["the", "dog", "<s>", "</s>", "<unk>", "<UNK>", "", "The", "日本", b"cat"]:
        assert (word in ours) == (word in theirs), word
    for wrong in (3, None):
        with pytest.raises(TypeError):
            wrong in ours  # noqa: B015
        with pytest.raises(TypeError):
            ours.score(wrong)  # type: ignore[arg-type]


def compare(ours: Model, theirs: Any, sentences: list[str]) -> int:
    """Compares all that both answer; returns the number of words."""
    number = 0
    for sentence in sentences:
        for bos, eos in ((True, True), (False, False)):
            mine = list(ours.full_scores(sentence, bos, eos))
            other = list(theirs.full_scores(sentence, bos, eos))
            np.testing.assert_allclose(
                [s[0] for s in mine], [s[0] for s in other], rtol=1e-6, atol=1e-5, err_msg=sentence
            )
            assert [s[1:] for s in mine] == [s[1:] for s in other], sentence
            number += len(mine)
        np.testing.assert_allclose(
            ours.score(sentence), theirs.score(sentence), rtol=2e-6, atol=1e-5
        )
        assert math.log10(ours.perplexity(sentence)) == pytest.approx(
            math.log10(theirs.perplexity(sentence)), rel=2e-6, abs=1e-5
        )
    return number


def compare_states(ours: Model, theirs: Any, sentences: list[str], *, has_unk: bool = True) -> None:
    """States of both are equal for the same pairs of histories, and give the same scores.

    After an unknown word KenLM does not minimize the state if the model has no <unk>.
    """
    pairs = []
    for sentence in sentences:
        mine, other = State(), kenlm.State()
        ours.BeginSentenceWrite(mine)
        theirs.BeginSentenceWrite(other)
        for word in sentence.split():
            after, other_after = State(), kenlm.State()
            score = ours.BaseScore(mine, word, after)
            assert score == pytest.approx(theirs.BaseScore(other, word, other_after), abs=1e-5)
            full, other_full = (
                ours.BaseFullScore(mine, word, State()),
                theirs.BaseFullScore(other, word, kenlm.State()),
            )
            assert (full.ngram_length, full.oov) == (other_full.ngram_length, other_full.oov)
            assert full.log_prob == pytest.approx(score)
            mine, other = after, other_after
            pairs.append((mine, other))
    keys = {(hash(mine), hash(other)) for mine, other in pairs}
    assert len(keys) == len({b for _, b in keys})
    assert len(keys) <= len({a for a, _ in keys}) + (not has_unk)
    for (a, x), (b, y) in itertools.pairwise(pairs):
        assert (a == b) == (x == y) or (a == b and not has_unk)


@pytest.mark.parametrize("order", [2, 3, 4, 5, 6])
def test_random_models(order: int, rng: np.random.Generator, tmp_path: Path) -> None:
    words = random_arpa(rng, tmp_path / "lm.arpa", order, 60)
    ours, theirs = Model(str(tmp_path / "lm.arpa")), kenlm.Model(str(tmp_path / "lm.arpa"))
    sentences = random_sentences(rng, words, 100)
    assert compare(ours, theirs, sentences) > 1000
    compare_states(ours, theirs, sentences)
    for options in ({}, {"bos": False}, {"eos": False}, {"bos": False, "eos": False}):
        one_by_one = [theirs.score(sentence, **options) for sentence in sentences]
        np.testing.assert_allclose(
            ours.scores(sentences, **options), one_by_one, rtol=2e-6, atol=1e-5
        )
    ours.save(tmp_path / "lm.lm")
    again = Model(tmp_path / "lm.lm")
    np.testing.assert_array_equal(again.scores(sentences), ours.scores(sentences, threads=1))


def test_published_models(rng: np.random.Generator, tmp_path: Path) -> None:
    """Ten models, most of them of other toolkits; 10,000 sentences and more."""
    paths = published_models(tmp_path)
    if not paths:
        pytest.skip("the published ARPA files are not on this machine")
    for order in (3, 4):
        paths.append(tmp_path / f"own{order}.arpa")
        random_arpa(rng, paths[-1], order, 500)
    number = models = 0
    for path in paths:
        try:
            theirs = kenlm.Model(str(path))
        except OSError:  # unigrams, which it does not take
            continue
        ours = Model(str(path))
        words = read_arpa_words(path)
        sentences = random_sentences(rng, words, 1_050)
        compare(ours, theirs, sentences[:300])
        has_unk = b"<unk>" in path.read_bytes().lower()
        compare_states(ours, theirs, sentences[300:400], has_unk=has_unk)
        np.testing.assert_allclose(
            ours.scores(sentences), [theirs.score(s) for s in sentences], rtol=2e-6, atol=1e-5
        )
        number += len(sentences)
        models += 1
    assert models >= 10
    assert number >= 10_000


def test_a_history_without_a_backoff_weight_is_kept_if_others_begin_with_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lm.arpa"
    unigrams = ["-1\t<unk>", "0\t<s>\t0", "-1\t</s>", "-0.5\tthe\t0", "-0.7\tcat\t0"]
    bigrams = ["-0.2\tthe cat"]
    counts = f"\\data\\\nngram 1={len(unigrams)}\nngram 2={len(bigrams)}\n"
    path.write_text(
        "\n".join([counts, "\\1-grams:", *unigrams, "", "\\2-grams:", *bigrams, "", "\\end\\", ""])
    )
    ours, state, after = Model(str(path)), State(), State()
    assert ours.BaseScore(State(), "the", state) == pytest.approx(-0.5)
    assert ours.BaseScore(state, "cat", after) == pytest.approx(-0.2)
    assert state != State()
    assert after == State()  # no n-gram begins with "cat"


def test_white_space_is_that_of_ascii(small: Path) -> None:
    ours, theirs = Model(str(small)), kenlm.Model(str(small))
    for text in [
        "the\tcat",
        " the\x0bcat\x0c",
        "the\rcat\n",
        "the\xa0cat",
        "the\u2003cat",
        "the\x1ccat",
    ]:
        assert ours.score(text) == pytest.approx(theirs.score(text), abs=1e-5), repr(text)


def test_a_model_without_unk(small: Path) -> None:
    text = small.read_text().replace("-1.5\t<unk>\t-0.05\n", "").replace("1=6", "1=5")
    small.write_text(text.replace("-0.6\t<unk> cat\t-0.25\n", "").replace("2=4", "2=3"))
    ours, theirs = Model(str(small)), kenlm.Model(str(small))
    assert ours.score("the dog") == pytest.approx(theirs.score("the dog"), abs=1e-5)
    assert ours.score("dog", bos=False, eos=False) == pytest.approx(-100.0, abs=1e-5)
    assert ours.BaseScore(State(), "dog", State()) == pytest.approx(-100.0, abs=1e-5)
    ours.save(small.with_suffix(".lm"))
    assert Model(small.with_suffix(".lm")).score("the dog") == ours.score("the dog")


def test_states_are_values(small: Path) -> None:
    model = Model(str(small))
    start, null = State(), State()
    assert start == null
    model.BeginSentenceWrite(start)
    assert start != null
    assert null < start
    assert start >= null
    assert sorted([start, null]) == [null, start]
    assert len({start, null, copy.copy(start), copy.deepcopy(null)}) == 2
    model.NullContextWrite(start)
    assert start == null
    same = State()
    model.BaseScore(same, "the", same)  # in and out may be one
    other = State()
    model.BaseScore(State(), "the", other)
    assert same == other


def test_states_that_are_none_of_the_model(small: Path, tmp_path: Path) -> None:
    """Nothing is read beyond the end of a smaller model."""
    texts = [list(range(50))] * 3
    large = NGramLM.train(texts, 5, vocab_size=50, smoothing="witten_bell")
    large.with_words([f"x{i}" for i in range(50)]).save(tmp_path / "large.lm")
    foreign = State()
    for i in range(40):
        Model(tmp_path / "large.lm").BaseScore(foreign, f"x{i}", foreign)
    model, out = Model(small), State()
    for method in (model.BaseScore, model.BaseFullScore):
        with pytest.raises(ValueError, match="state: it is of another LM"):
            method(foreign, "the", out)
        for arguments in ((None, "the", out), (out, "the", None), (out, 3, out), (out, "the")):
            with pytest.raises(TypeError):
                method(*arguments)
    with pytest.raises(TypeError):
        model.BeginSentenceWrite(None)  # type: ignore[arg-type]


def test_calls_of_every_form(small: Path) -> None:
    model, theirs = Model(small), kenlm.Model(str(small))
    state, out = State(), State()
    expected = model.BaseScore(state, "the", out)
    assert model.BaseScore(in_state=state, word="the", out_state=out) == expected
    assert model.BaseScore(state, b"the", out) == expected
    whole = pytest.approx(theirs.score("the cat"), abs=1e-5)
    assert model.score("the cat") == model.score(b"the cat") == whole
    assert model.score(sentence="the cat") == model.score("the cat", True, True) == whole
    inside = pytest.approx(theirs.score("the cat", bos=False, eos=False), abs=1e-5)
    assert model.score("the cat", False, False) == model.score("the cat", eos=False, bos=False)
    assert model.score("the cat", bos=False, eos=False) == inside
    for wrong in ((), ("the", 1, 2, 3), ("the", "yes")):
        with pytest.raises(TypeError):
            model.score(*wrong)
    with pytest.raises(UnicodeEncodeError):
        model.score("\ud800")
    with pytest.raises(TypeError, match="expected a list of them"):
        model.scores("the cat")


def test_a_pickle_has_the_path(small: Path) -> None:
    model = Model(str(small))
    again = pickle.loads(pickle.dumps(model))  # noqa: S301
    assert again.path == model.path
    assert again.score("the cat") == model.score("the cat")


def test_files(small: Path, tmp_path: Path) -> None:
    packed = tmp_path / "small.arpa.gz"
    packed.write_bytes(gzip.compress(small.read_bytes()))
    assert Model(packed).score("the cat") == Model(small).score("the cat")
    config = Config()
    config.load_method = LoadMethod.LAZY
    assert Model(bytes(small), config).order == 3
    with pytest.raises(OSError, match="nowhere"):
        Model(tmp_path / "nowhere.arpa")
    with pytest.raises(TypeError, match="NoneType"):
        Model(None)  # type: ignore[arg-type]
    NGramLM.train([[0, 1]], 2, vocab_size=2, smoothing="witten_bell").save(tmp_path / "ids.lm")
    with pytest.raises(FormatError, match=r"ids\.lm: the LM has token ids without words"):
        read_word_lm(tmp_path / "ids.lm")
    (tmp_path / "kenlm.bin").write_bytes(b"mmap lm http://kheafield.com/code format version 5\n\0")
    with pytest.raises(FormatError, match=r"a binary LM of KenLM.*ngram convert .*--words"):
        Model(tmp_path / "kenlm.bin")


def test_words_that_are_not_utf8(small: Path) -> None:
    """Words are bytes, as in KenLM; texts are encoded as UTF-8."""
    small.write_bytes(small.read_bytes().replace(b"cat", b"c\xe4t"))
    ours, theirs = Model(str(small)), kenlm.Model(str(small))
    for text in (b"the c\xe4t sat", "the cät sat"):
        assert ours.score(text) == pytest.approx(theirs.score(text), abs=1e-5)


def test_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kenlm", kenlm)
    monkeypatch.delitem(sys.modules, "pyctcdecode.language_model", raising=False)
    install()
    assert sys.modules["kenlm"] is kenlm_interface
    for name in dir(kenlm):
        assert name.startswith("_") or name == "os" or hasattr(kenlm_interface, name), name
    decoder = types.ModuleType("pyctcdecode.language_model")
    decoder.kenlm = kenlm  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyctcdecode.language_model", decoder)
    with pytest.raises(RuntimeError, match="before the first import of pyctcdecode"):
        install()
    decoder.kenlm = kenlm_interface  # type: ignore[attr-defined]
    install()
