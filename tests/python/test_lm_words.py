"""Words of an LM: a section of its file, and training on the words of a text."""

import json
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from lattice_bpd import FormatError, NGramLM
from lattice_bpd.cli import main
from lattice_bpd.lm import describe_lm, read_lm, write_lm
from lattice_bpd.train import train_corpus, word_corpus

WORDS = ["the", "Grüße", "日本", "0"]
TEXT = """The cat sat on the mat .
the dog sat on the cat .
A cat !
"""


def make_lm() -> NGramLM:
    return NGramLM.train([[0, 1, 2, 3, 1]] * 9, 3, vocab_size=4, smoothing="witten_bell")


def test_words_are_a_section_of_the_file(tmp_path: Path) -> None:
    plain = make_lm()
    assert plain.words is None
    lm = plain.with_words(WORDS)
    assert lm.words == WORDS
    assert plain.words is None
    lm.save(tmp_path / "words.lm")
    read = NGramLM.load(tmp_path / "words.lm", verify=True)
    assert read.words == WORDS
    np.testing.assert_array_equal(read.score([0, 1, 3]), plain.score([0, 1, 3]))
    sections = {
        section["name"]: section["bytes"] for section in describe_lm(tmp_path / "words.lm").sections
    }
    assert sections["words"] == sum(len(word.encode()) + 1 for word in WORDS)


def test_an_lm_without_words_is_the_file_that_it_was(tmp_path: Path) -> None:
    make_lm().save(tmp_path / "plain.lm")
    data = (tmp_path / "plain.lm").read_bytes()
    assert int.from_bytes(data[8:12], "little") == 3  # the version of files before words
    make_lm().with_words(WORDS).save(tmp_path / "words.lm")
    assert (tmp_path / "words.lm").read_bytes()[8:12] == data[8:12]
    NGramLM.load(tmp_path / "words.lm").with_words(["a", "b", "c", "d"]).save(tmp_path / "other.lm")
    assert NGramLM.load(tmp_path / "other.lm").words == ["a", "b", "c", "d"]


def test_changed_lms_keep_their_words(tmp_path: Path) -> None:
    lm = make_lm().with_words(WORDS)
    assert lm.prune(theta=1e-3).words == WORDS
    assert lm.quantize(8).words == WORDS
    assert NGramLM.interpolate([lm, lm], weights=[1, 1]).words == WORDS
    with pytest.raises(ValueError, match="LM 1 has other words than LM 0"):
        NGramLM.interpolate([lm, make_lm().with_words(WORDS[::-1])], weights=[1, 1])


def test_arpa_has_the_words(tmp_path: Path) -> None:
    lm = make_lm().with_words(WORDS)
    write_lm(lm, tmp_path / "words.arpa")
    again = read_lm(tmp_path / "words.arpa", words=True)
    words = again.words or []
    assert sorted(words) == sorted(WORDS)
    ids = [words.index(word) for word in WORDS]
    np.testing.assert_allclose(again.score(ids, eos=True), lm.score(range(4), eos=True), rtol=1e-6)
    write_lm(lm, tmp_path / "words.arpa.gz")
    assert read_lm(tmp_path / "words.arpa.gz", words=True).words == words
    assert main(["ngram", "convert", f"{tmp_path}/words.arpa", f"{tmp_path}/x.lm", "--words"]) == 0
    assert NGramLM.load(tmp_path / "x.lm").words == words
    write_lm(lm, tmp_path / "lm.fst")
    assert read_lm(tmp_path / "lm.fst", vocab=WORDS, words=True).words == WORDS
    with pytest.raises(ValueError, match=r"lm\.fst: an OpenFst file has no .*; expected vocab$"):
        read_lm(tmp_path / "lm.fst", vocab_size=4, words=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "b", "c"], "3 of them; expected one for each of the 4 token ids"),
        (["a", "b", "a", "d"], 'token ids 0 and 2 have the same word "a"'),
        (["a", "b c", "d", "e"], "the word of token id 1 is empty, or has white space"),
        (["a", "", "d", "e"], "the word of token id 1 is empty"),
        (["a", "b\n", "d", "e"], "the word of token id"),
    ],
)
def test_words_that_do_not_fit(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_lm().with_words(words)


def test_damaged_words_are_a_format_error(tmp_path: Path) -> None:
    """Where checksums are not compared, the words are checked all the same."""
    lm = make_lm().with_words(WORDS)
    lm.save(tmp_path / "words.lm")
    data = (tmp_path / "words.lm").read_bytes()
    bad = data.replace(b"the\n", b"t e\n")
    assert bad != data
    (tmp_path / "words.lm").write_bytes(bad)
    with pytest.raises(FormatError, match="checksum differs"):
        NGramLM.load(tmp_path / "words.lm")
    with pytest.raises(FormatError, match=r"words\.lm: words: the word of token id 0"):
        NGramLM.load(tmp_path / "words.lm", verify=False)


def ids_by_hand(text: str, words: list[str]) -> list[list[int]]:
    ids = {word: i for i, word in enumerate(words)}
    return [[ids.get(word, 0) for word in line.split()] for line in text.splitlines()]


@pytest.mark.filterwarnings("ignore")
def test_training_on_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(TEXT, encoding="utf-8")
    assert main(["ngram", "train", "--words", str(corpus), "--order", "2", "--lowercase",
                 "--min-word-count", "2", "-o", str(tmp_path / "words.lm")]) == 0  # fmt: skip
    lm = NGramLM.load(tmp_path / "words.lm")
    counts = Counter(TEXT.lower().split())
    frequent = sorted((w for w in counts if counts[w] > 1), key=lambda w: (-counts[w], w))
    assert lm.words == ["<unk>", *frequent] == ["<unk>", "the", "cat", ".", "on", "sat"]
    expected = NGramLM.train(
        ids_by_hand(TEXT.lower(), lm.words), 2, vocab_size=6, unk_id=0,
        smoothing="modified_kneser_ney", unseen="uniform",
    )  # fmt: skip
    np.testing.assert_allclose(lm.score(range(6), eos=True), expected.score(range(6), eos=True))
    assert "5 n-grams" not in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")
def test_words_by_their_number_and_normal_form(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    composed, decomposed = "café", unicodedata.normalize("NFD", "café")
    no_break = "a\N{NO-BREAK SPACE}b"  # no white space of ASCII: one word
    corpus.write_text(f"{composed} {decomposed} x\n{no_break} <unk> <UNK> x x\n", encoding="utf-8")
    options = {"smoothing": "witten_bell", "unseen": "uniform"}
    assert train_corpus(word_corpus([corpus]), 1, **options).words == [
        "<unk>",
        "x",
        "café",
        no_break,
    ]
    assert word_corpus([corpus], vocab_size=2).size_of_vocabulary == 2
    as_it_is = train_corpus(word_corpus([corpus], normal_form="none"), 1, **options).words
    assert as_it_is is not None
    assert set(as_it_is) == {"<unk>", "x", composed, decomposed, no_break}
    nfkc = train_corpus(word_corpus([corpus], normal_form="NFKC"), 1, **options).words
    assert nfkc == ["<unk>", "x", "café", "a", "b"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-"], "words are counted in a first pass over text"),
        (["ids.npy"], "words are counted in a first pass over text"),
        (["bounds.txt"], "bounds.txt, line 2: the word </s> in the text"),
        (["corpus.txt", "--min-word-count", "9"], "no word occurs 9 times"),
        (["corpus.txt", "--min-word-count", "0"], "min_word_count is 0"),
        (["corpus.txt", "--vocab-size", "1"], "vocab_size 1"),
        (["corpus.txt", "--tokenizer", "t.json"], "--tokenizer with --words"),
        (["corpus.txt", "--unk-id", "3"], "--unk-id with --words"),
    ],
)
def test_bad_words(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text(TEXT)
    Path("bounds.txt").write_text("a b\nc </s> d\n")
    np.save("ids.npy", np.arange(3))
    assert main(["ngram", "train", "--words", *arguments, "-o", "out.lm"]) == 2
    assert message in capsys.readouterr().err
    assert not Path("out.lm").exists()


def test_options_of_words_need_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.txt").write_text(TEXT)
    arguments = [
        "ngram",
        "train",
        str(tmp_path / "t.txt"),
        "--lowercase",
        "-o",
        str(tmp_path / "x"),
    ]
    assert main(arguments) == 2
    assert "--lowercase is of --words" in capsys.readouterr().err


def test_info_names_the_section(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_lm().with_words(WORDS).save(tmp_path / "words.lm")
    assert main(["ngram", "info", "--json", str(tmp_path / "words.lm")]) == 0
    names = {section["name"] for section in json.loads(capsys.readouterr().out)["sections"]}
    assert "words" in names
