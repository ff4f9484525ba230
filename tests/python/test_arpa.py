"""ARPA text: harmless variations, words, and what is refused with its line."""

import gzip
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_bpd import FormatError, NGramLM
from lattice_bpd.cli import main
from lattice_bpd.lm import read_arpa_words, read_lm, write_lm
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
    "tabs for spaces": lambda t: t.replace("\n", "\r").replace(" ", "\t").replace("\r", "\n")
    .replace("ngram\t", "ngram "),
    "trailing spaces": lambda t: t.replace("\n", "  \n"),
    "blank lines": lambda t: t.replace("\n", "\n\n"),
    "no blank lines": lambda t: t.replace("\n\n", "\n"),
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


def test_special_words_of_the_vocabulary_name_their_ids(core_of: Any) -> None:
    header, entries = SMALL_ARPA.split("\\1-grams:")
    for token, word in enumerate(["the", "cat", "sat", "ran"]):
        entries = re.sub(rf"(?<=[\t ]){token}(?=[\t \n])", word, entries)
    text = header + "\\1-grams:" + entries
    lm = core_of(text, vocab=["<s>", "</s>", "the", "cat", "sat", "ran"])
    assert lm.log_prob(2) == pytest.approx(LN10 * -0.2)  # <s> the
    assert lm.log_prob(2, [0]) == pytest.approx(LN10 * -0.2)
    assert lm.log_prob(1, [2, 3], bos=False) == pytest.approx(LN10 * (-0.15 - 0.3 - 1.0))


# What is done to SMALL_ARPA, the line that the message must name, what it must say.
BROKEN: dict[str, tuple[Any, int | None, str]] = {
    "no data": (lambda t: t.replace("\\data\\", "data"), None, r"no line .*data"),
    "count of order 2 first": (lambda t: t.replace("ngram 1=6\n", ""), 3, "expected order 1"),
    "count that is no number": (lambda t: t.replace("1=6", "1=x"), 3, "ORDER=COUNT"),
    "enormous count": (lambda t: t.replace("2=4", "2=4294967295"), 4, "too many"),
    "fewer unigrams": (lambda t: t.replace("1=6", "1=7"), None, "6 1-grams.*says 7"),
    "order 7": (
        lambda t: t.replace("3=2\n", "3=2\nngram 4=0\nngram 5=0\nngram 6=0\nngram 7=0\n"),
        9,
        r"order 7.*1\.\.6",
    ),
    "wrong title": (lambda t: t.replace("\\2-grams:", "\\4-grams:"), 15, "2-grams"),
    "no end": (lambda t: t.replace("\\end\\", ""), None, "cut"),
    "doubled unigram": (
        lambda t: t.replace("-1.2\t3", "-1.2\t3\n-1.3\t3").replace("1=6", "1=7"),
        14,
        "twice, first in line 13",
    ),
    "missing history": (lambda t: t.replace("0 1 2", "1 1 2"), 23, "history"),
    "positive log probability": (lambda t: t.replace("-0.45", "0.45"), 23, "positive"),
    "NaN": (lambda t: t.replace("-0.45", "nan"), 23, "nan"),
    "NaN backoff": (lambda t: t.replace("-0.25", "NaN"), 19, "backoff"),
    "no number": (lambda t: t.replace("-0.45", "-0.4.5"), 23, "-0.4.5"),
    "too few fields": (lambda t: t.replace("0 1 2", "0 1"), 23, "fields"),
    "words without vocab": (lambda t: t.replace("\t2\t", "\tsat\t"), 12, "vocab="),
    "negative id": (lambda t: t.replace("\t2\t", "\t-2\t"), 12, "token id"),
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
        read_lm(path)
    assert str(path) in str(raised.value)
    if line is not None:
        assert f":{line}:" in str(raised.value)


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
    write_lm(lm, path)
    text = path.read_text()
    unigrams = text.split("\\1-grams:\n")[1].split("\n\n")[0].splitlines()
    words = [line.split("\t")[1] for line in unigrams]
    assert words.count("<s>") == words.count("</s>") == 1
    assert "9" not in words
    assert f"ngram 1={len(words)}\n" in text
    assert "\t<s> 1" in text
    assert "2 </s>\n" in text
    back = read_lm(path, vocab_size=10, bos_id=9, eos_id=9)
    texts = np.random.default_rng(0).integers(0, 10, (50, 6))
    for row in texts:
        np.testing.assert_allclose(back.score(row, eos=True), lm.score(row, eos=True), atol=1e-6)


def test_words_that_an_arpa_file_lacks_are_named_with_the_sum(tmp_path: Path, capsys: Any) -> None:
    lm = NGramLM.train([[0, 1], [1, 2]], 2, vocab_size=4, unk_id=3, smoothing="witten_bell",
                       unseen="uniform")  # fmt: skip
    write_lm(lm, tmp_path / "lm.arpa", vocab=["a", "b", "c", "<unk>"])
    unknown = np.exp(lm.log_prob(3, bos=False))
    with pytest.warns(UserWarning, match=r"2 of 5 token ids .* sum to (\S+)") as caught:
        back = read_lm(tmp_path / "lm.arpa", vocab=["a", "b", "c", "d", "e"])
    assert back.vocab_size == 5
    assert back.words is None
    stated = float(str(caught[0].message).split("sum to ")[1].split()[0])
    assert stated == pytest.approx(1 + 2 * unknown, abs=1e-4)
    arguments = ["ngram", "convert", str(tmp_path / "lm.arpa"), str(tmp_path / "lm.lm")]
    (tmp_path / "vocab.txt").write_text("a\nb\nc\nd\ne\n")
    assert main([*arguments, "--vocab", str(tmp_path / "vocab.txt"), "--words"]) == 0
    assert "note: " in (note := capsys.readouterr().err)
    assert "2 of 5 token ids are not among its words" in note
    assert NGramLM.load(tmp_path / "lm.lm").words == ["a", "b", "c", "d", "e"]


def test_ids_of_special_symbols_are_not_missing_words(boundary_lm: NGramLM, tmp_path: Path) -> None:
    words = [f"w{token}" for token in range(10)]
    write_lm(boundary_lm, tmp_path / "lm.arpa", vocab=words)
    back = read_lm(tmp_path / "lm.arpa", vocab=words, words=True, bos_id=9, eos_id=9)  # no warning
    assert back.words == words
    np.testing.assert_allclose(back.score([1, 2, 9]), boundary_lm.score([1, 2, 9]), atol=1e-6)


WORDS = ["le", "café", "naïf", "ça"]
TEXT = [0, 1, 2, 3, 0, 1]


def in_words(words: list[str]) -> str:
    """SMALL_ARPA with words for its token ids."""
    lines = []
    for line in SMALL_ARPA.split("\n"):
        fields = line.split("\t")
        if len(fields) > 1:
            fields[1] = re.sub(r"\d", lambda match: words[int(match[0])], fields[1])
        lines.append("\t".join(fields))
    return "\n".join(lines)


def write(path: Path, data: str | bytes, packed: bool = False) -> Path:
    raw = data.encode() if isinstance(data, str) else data
    path.write_bytes(gzip.compress(raw) if packed else raw)
    return path


def read_words_of(path: Path) -> NGramLM:
    return read_lm(path, words=True)


@pytest.mark.parametrize("packed", [False, True])
def test_another_encoding_is_refused_with_what_to_do(
    packed: bool, small_lm: NGramLM, tmp_path: Path, capsys: Any
) -> None:
    path = write(tmp_path / "x.arpa", in_words(WORDS).encode("latin-1"), packed)
    hint = r" \(the file is not UTF-8: convert it, for example with (iconv .* utf-8)\)$"
    message = rf"x\.arpa:\d+: the word .caf\\xe9.*not in vocab.*{hint}"
    with pytest.raises(FormatError, match=message):
        read_lm(path, vocab=WORDS)
    for read in (read_arpa_words, read_words_of):
        with pytest.raises(FormatError, match=rf"x\.arpa: the word b'caf\\xe9' is no text{hint}"):
            read(path)
    assert main(["ngram", "convert", str(path), str(tmp_path / "y.lm"), "--words"]) == 2
    advice = re.search(hint, capsys.readouterr().err.strip())
    assert advice is not None
    plain = write(tmp_path / "plain.arpa", in_words(WORDS).encode("latin-1"))
    converted = subprocess.run([*advice[1].split(), str(plain)], stdout=subprocess.PIPE, check=True)
    lm = read_words_of(write(path, converted.stdout, packed))
    assert lm.words == WORDS
    np.testing.assert_array_equal(lm.score(TEXT), small_lm.score(TEXT))


def test_gzipped_text_is_written_whole_and_the_same_each_time(
    small_lm: NGramLM, tmp_path: Path
) -> None:
    write_lm(small_lm, tmp_path / "x.arpa.gz", vocab=WORDS)
    write_lm(small_lm, tmp_path / "y.arpa", vocab=WORDS)
    packed = (tmp_path / "x.arpa.gz").read_bytes()
    assert gzip.decompress(packed) == (tmp_path / "y.arpa").read_bytes()
    write_lm(small_lm, tmp_path / "z.arpa.gz", vocab=WORDS)
    assert (tmp_path / "z.arpa.gz").read_bytes() == packed  # neither time nor name is in it
    again = read_lm(tmp_path / "x.arpa.gz", vocab=WORDS)
    np.testing.assert_array_equal(again.score(TEXT), small_lm.score(TEXT))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.arpa.gz", "y.arpa", "z.arpa.gz"]


READERS: dict[str, Any] = {
    "read_lm": read_lm,
    "read_lm of words": read_words_of,
    "read_arpa_words": read_arpa_words,
}


@pytest.mark.parametrize("reader", READERS)
def test_errors_name_the_gzip_file_of_the_user(reader: str, tmp_path: Path) -> None:
    broken = SMALL_ARPA.replace("-0.8\t2", "x\t2")
    path = write(tmp_path / "mine.arpa.gz", broken, packed=True)
    with pytest.raises(FormatError) as raised:
        READERS[reader](path)
    assert re.match(rf'{re.escape(str(path))}:\d+: "x" is no log10', str(raised.value))
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(FormatError, match=r"mine\.arpa\.gz: the gzip file is truncated"):
        READERS[reader](path)
    data = bytearray(gzip.compress(SMALL_ARPA.encode() * 9))
    data[40:60] = bytes(20)
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"mine\.arpa\.gz: damaged or not a gzip file"):
        READERS[reader](path)
