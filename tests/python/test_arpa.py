"""ARPA text: what the reader takes as harmless, and what it refuses with the line."""

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_bpd import FormatError, NGramLM
from lattice_bpd.lm import read_arpa_words
from lattice_bpd.lm.convert import read_kenlm
from oracles import LN10, read_arpa
from small_arpa import SMALL_ARPA

HISTORIES: list[list[int]] = [[], [0], [1], [3, 0], [0, 1], [2, 0], [1, 2], [2, 2, 3]]
PROSE = (
    "Language model by some toolkit\nngram 1=nr   # number of 1-grams\n\\data is below\n"
    "\\1-grams: look like this:\np_1 wd_1\n\n"
)


def answers(lm: NGramLM) -> list[float]:
    """ln P of every token after every history, with <s> and without."""
    return [
        lm.log_prob(token, history, bos=bos)
        for history in HISTORIES
        for token in range(4)
        for bos in (True, False)
    ]


HARMLESS: dict[str, Any] = {
    "prose before the data": lambda t: PROSE + t,
    "Windows line ends": lambda t: t.replace("\n", "\r\n"),
    "spaces for tabs": lambda t: t.replace("\t", "  "),
    "tabs for spaces": lambda t: t.replace("\n", "\r").replace(" ", "\t").replace("\r", "\n")
    .replace("ngram\t", "ngram "),
    "trailing spaces": lambda t: t.replace("\n", "  \n"),
    "indented entries": lambda t: t.replace("\n-0.", "\n   -0."),
    "blank lines": lambda t: t.replace("\n", "\n\n"),
    "no blank lines": lambda t: t.replace("\n\n", "\n"),
    "no last line end": lambda t: t.rstrip("\n"),
    "text after the end": lambda t: t + "\nwritten on a Monday\n",
    "spaces in the counts": lambda t: t.replace("ngram 1=6", "ngram  1 =   6"),
    "exponents and signs": lambda t: t.replace("-0.45", "-4.5e-1").replace("-1.2", "-12E-1"),
    "zero backoffs written": lambda t: t.replace("-0.5\t1 2\n", "-0.5\t1 2\t+0.0\n"),
    "backoffs at the highest order": lambda t: t.replace("0 1 2\n", "0 1 2\t-0.7\n"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HARMLESS)
def test_harmless_variations(kind: str, core_of: Any, small_lm: NGramLM) -> None:
    changed = HARMLESS[kind](SMALL_ARPA)
    assert changed != SMALL_ARPA
    assert answers(core_of(changed, vocab_size=4)) == answers(small_lm)


@pytest.mark.parametrize("seed", range(10))
def test_any_order_of_lines(seed: int, rng: Any, core_of: Any, small_lm: NGramLM) -> None:
    blocks = SMALL_ARPA.split("\n\n")
    for i in (1, 2, 3):
        title, *entries = blocks[i].splitlines()
        blocks[i] = "\n".join([title, *rng.permutation(entries)])
    assert answers(core_of("\n\n".join(blocks), vocab_size=4)) == answers(small_lm)


def test_a_missing_suffix_is_inserted(core_of: Any) -> None:
    # Without 1 2, P(2 | 1) is a backoff; the trigram 0 1 2 stays, and nothing else changes.
    text = SMALL_ARPA.replace("-0.5\t1 2\n", "").replace("ngram 2=4", "ngram 2=3")
    lm, oracle = core_of(text, vocab_size=4), read_arpa(text)
    assert lm.num_ngrams == [7, 4, 2]
    assert lm.log_prob(2, [1]) == pytest.approx(LN10 * (-0.3 + -0.8))
    assert lm.log_prob(2, [0, 1]) == pytest.approx(LN10 * -0.45)
    for history in HISTORIES:
        for token in range(4):
            expected = oracle.log_prob(oracle.history(history), token)
            assert lm.log_prob(token, history) == pytest.approx(expected, abs=1e-6)


def test_tokens_the_file_lacks(core_of: Any) -> None:
    assert core_of(SMALL_ARPA).vocab_size == 4
    assert core_of(SMALL_ARPA, vocab_size=9).log_prob(8, bos=False) == -1000.0
    with_unk = SMALL_ARPA.replace("-1.2\t3\n", "-1.2\t3\n-2.5\t<unk>\n")
    lm = core_of(with_unk.replace("ngram 1=6", "ngram 1=7"), vocab_size=9)
    assert lm.log_prob(8, bos=False) == pytest.approx(LN10 * -2.5)


def test_minus_infinity_is_probability_zero(core_of: Any) -> None:
    lm = core_of(SMALL_ARPA.replace("-1.2\t3", "-inf\t3"), vocab_size=4)
    assert lm.log_prob(3, bos=False) < -1e29


def test_words_instead_of_ids(core_of: Any, small_lm: NGramLM, tmp_path: Path) -> None:
    names = ["the", "Käse", "1", "0"]  # words that look like ids are words
    (tmp_path / "ids.arpa").write_text(SMALL_ARPA)
    NGramLM.from_arpa(tmp_path / "ids.arpa").to_arpa(tmp_path / "words.arpa", vocab=names)
    assert read_arpa_words(tmp_path / "words.arpa") == names
    (tmp_path / "vocab.txt").write_text("the\nKäse\n1\n0\n", encoding="utf-8")
    for vocab in (names, tuple(names), tmp_path / "vocab.txt", str(tmp_path / "vocab.txt")):
        lm = NGramLM.from_arpa(tmp_path / "words.arpa", vocab=vocab)
        assert answers(lm) == answers(small_lm)


def test_special_words_of_the_vocabulary_name_their_ids(core_of: Any) -> None:
    header, entries = SMALL_ARPA.split("\\1-grams:")
    for token, word in enumerate(["the", "cat", "sat", "ran"]):
        entries = re.sub(rf"(?<=[\t ]){token}(?=[\t \n])", word, entries)
    text = header + "\\1-grams:" + entries
    lm = core_of(text, vocab=["<s>", "</s>", "the", "cat", "sat", "ran"])
    assert lm.log_prob(2) == pytest.approx(LN10 * -0.2)  # <s> the
    assert lm.log_prob(2, [0]) == pytest.approx(LN10 * -0.2)
    assert lm.log_prob(1, [2, 3], bos=False) == pytest.approx(LN10 * (-0.15 - 0.3 - 1.0))


def test_order_1(core_of: Any) -> None:
    lm = core_of("\\data\\\nngram 1=2\n\\1-grams:\n-0.1 0\n-1.5 1\n\\end\\\n")
    assert lm.order == 1
    assert lm.score([0, 1, 0]) == pytest.approx([LN10 * -0.1, LN10 * -1.5, LN10 * -0.1])


# What is done to SMALL_ARPA, the line that the message must name, what it must say.
BROKEN: dict[str, tuple[Any, int | None, str]] = {
    "empty": (lambda _: "", None, "not ARPA"),
    "no data": (lambda t: t.replace("\\data\\", "data"), None, r"no line .*data"),
    "no counts": (lambda _: "\\data\\\n\n\\1-grams:\n-1 0\n\\end\\\n", None, "no .ngram 1="),
    "count of order 2 first": (lambda t: t.replace("ngram 1=6\n", ""), 3, "expected order 1"),
    "count that is no number": (lambda t: t.replace("1=6", "1=x"), 3, "ORDER=COUNT"),
    "negative count": (lambda t: t.replace("1=6", "1=-6"), 3, "ORDER=COUNT"),
    "enormous count": (lambda t: t.replace("2=4", "2=4294967295"), 4, "too many"),
    "large count": (lambda t: t.replace("2=4", "2=4000000000"), None, "says 4000000000"),
    "fewer unigrams": (lambda t: t.replace("1=6", "1=7"), None, "6 1-grams.*says 7"),
    "more unigrams": (lambda t: t.replace("1=6", "1=5"), None, "6 1-grams.*says 5"),
    "fewer bigrams": (lambda t: t.replace("-0.5\t1 2\n", ""), None, "3 2-grams.*says 4"),
    "order 7": (
        lambda t: t.replace("3=2\n", "3=2\nngram 4=0\nngram 5=0\nngram 6=0\nngram 7=0\n"),
        9,
        r"order 7.*1\.\.6",
    ),
    "section missing": (lambda t: t.replace("\\2-grams:\n", ""), None, "fields"),
    "wrong title": (lambda t: t.replace("\\2-grams:", "\\4-grams:"), 15, "2-grams"),
    "no end": (lambda t: t.replace("\\end\\", ""), None, "cut"),
    "another order after it": (lambda t: t.replace("\\end\\", "\\4-grams:"), None, "end"),
    "doubled unigram": (
        lambda t: t.replace("-1.2\t3", "-1.2\t3\n-1.3\t3").replace("1=6", "1=7"),
        14,
        "twice, first in line 13",
    ),
    "doubled bigram": (
        lambda t: t.replace("-0.5\t1 2", "-0.5\t1 2\n-0.6\t1 2").replace("2=4", "2=5"),
        None,
        "2-gram occurs twice",
    ),
    "missing history": (lambda t: t.replace("0 1 2", "1 1 2"), 23, "history"),
    "positive log probability": (lambda t: t.replace("-0.45", "0.45"), 23, "positive"),
    "NaN": (lambda t: t.replace("-0.45", "nan"), 23, "nan"),
    "infinity": (lambda t: t.replace("-0.45", "inf"), 23, "inf"),
    "NaN backoff": (lambda t: t.replace("-0.25", "NaN"), 19, "backoff"),
    "infinite backoff": (lambda t: t.replace("-0.25", "inf"), 19, "backoff"),
    "no number": (lambda t: t.replace("-0.45", "-0.4.5"), 23, "-0.4.5"),
    "hexadecimal": (lambda t: t.replace("-0.45", "-0x1p3"), 23, "-0x1p3"),
    "comma for a point": (lambda t: t.replace("-0.45", "-0,45"), 23, "-0,45"),
    "too few fields": (lambda t: t.replace("0 1 2", "0 1"), 23, "fields"),
    "too many fields": (lambda t: t.replace("0 1 2", "0 1 2 -1 9"), 23, "fields"),
    "words without vocab": (lambda t: t.replace("\t2\t", "\tsat\t"), 12, "vocab="),
    "negative id": (lambda t: t.replace("\t2\t", "\t-2\t"), 12, "token id"),
    "enormous id": (lambda t: t.replace("\t2\t", "\t99999999999\t"), 12, "token id"),
    "id of no unigram": (lambda t: t.replace("0 1 2", "0 1 8"), 23, "not among the unigrams"),
    "bytes that are no text": (lambda t: t.replace("\t2\t", "\t\udcff\t"), 12, r"\\xff"),
    "a character cut in two": (lambda t: t.replace("0 1 2", "0 1 2 1 x" + 90 * "ü"), 23, "fields"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_text(kind: str, tmp_path: Path) -> None:
    change, line, message = BROKEN[kind]
    changed = change(SMALL_ARPA)
    assert changed != SMALL_ARPA
    path = tmp_path / "broken.arpa"
    path.write_bytes(changed.encode(errors="surrogateescape"))
    with pytest.raises(FormatError, match=message) as raised:
        NGramLM.from_arpa(path)
    assert str(path) in str(raised.value)
    if line is not None:
        assert f":{line}:" in str(raised.value)


@pytest.mark.parametrize("cut", range(0, len(SMALL_ARPA.rstrip()), 7))
def test_cut_anywhere(cut: int, core_of: Any) -> None:
    with pytest.raises(FormatError, match=r"cut|not ARPA|fields|expected|no .ngram"):
        core_of(SMALL_ARPA[:cut])


def test_other_files(tmp_path: Path, small_lm: NGramLM) -> None:
    path = tmp_path / "other"
    path.write_bytes(gzip.compress(SMALL_ARPA.encode()))
    assert NGramLM.from_arpa(path).num_ngrams == small_lm.num_ngrams
    small_lm.save(path)
    with pytest.raises(FormatError, match=r"NGramLM\.load"):
        NGramLM.from_arpa(path)
    path.write_bytes(bytes(range(256)) * 40)
    with pytest.raises(FormatError, match="not ARPA"):
        NGramLM.from_arpa(path)
    path.write_text(SMALL_ARPA)
    with pytest.raises(FormatError, match="from_arpa"):
        NGramLM.load(path)


@pytest.fixture(scope="module")
def boundary_lm() -> NGramLM:
    """<s> and </s> are one token id, as GPT-2's <|endoftext|>."""
    sequences = [[9, 1, 2, 9], [9, 1, 3, 9], [9, 2, 1, 2, 9], [9, 9]]
    return NGramLM.train(
        sequences, 3, vocab_size=10, bos_id=9, eos_id=9, smoothing="witten_bell", unseen="uniform"
    )


def test_both_symbols_of_one_id_are_written_and_read_back(
    boundary_lm: NGramLM, tmp_path: Path
) -> None:
    lm = boundary_lm
    path = tmp_path / "lm.arpa"
    lm.to_arpa(path)
    text = path.read_text()
    unigrams = text.split("\\1-grams:\n")[1].split("\n\n")[0].splitlines()
    words = [line.split("\t")[1] for line in unigrams]
    assert words.count("<s>") == words.count("</s>") == 1
    assert "9" not in words
    assert f"ngram 1={len(words)}\n" in text
    assert "\t<s> 1" in text
    assert "2 </s>\n" in text
    back = NGramLM.from_arpa(path, 10, bos_id=9, eos_id=9)
    texts = np.random.default_rng(0).integers(0, 10, (50, 6))
    for row in texts:
        np.testing.assert_allclose(back.score(row, eos=True), lm.score(row, eos=True), atol=1e-6)


def test_words_that_an_arpa_file_lacks_are_named_with_the_sum(tmp_path: Path) -> None:
    lm = NGramLM.train([[0, 1], [1, 2]], 2, vocab_size=4, unk_id=3, smoothing="witten_bell",
                       unseen="uniform")  # fmt: skip
    lm.to_arpa(tmp_path / "lm.arpa", vocab=["a", "b", "c", "<unk>"])
    unknown = np.exp(lm.log_prob(3, bos=False))
    with pytest.warns(UserWarning, match=r"2 of 5 token ids .* sum to (\S+)") as caught:
        back, words = read_kenlm(tmp_path / "lm.arpa", ["a", "b", "c", "d", "e"])
    assert len(words) == back.vocab_size == 5
    stated = float(str(caught[0].message).split("sum to ")[1].split()[0])
    assert stated == pytest.approx(1 + 2 * unknown, abs=1e-4)
    read_kenlm(tmp_path / "lm.arpa", ["a", "b", "c"])  # no warning
