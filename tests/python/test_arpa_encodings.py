"""ARPA text in other encodings, gzipped, with enormous words: read, or refused in one line."""

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_bpd import FormatError, NGramLM
from lattice_bpd.cli import main
from lattice_bpd.lm import read_arpa_words, read_kenlm, read_lm, write_lm
from small_arpa import SMALL_ARPA

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


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("start", ["", "\n", "some text\n"])
def test_a_byte_order_mark_is_skipped(
    start: str, packed: bool, small_lm: NGramLM, tmp_path: Path
) -> None:
    data = (start + SMALL_ARPA.lstrip("\n")).encode("utf-8-sig")
    lm = NGramLM.from_arpa(write(tmp_path / "bom", data, packed), vocab_size=4)
    np.testing.assert_array_equal(lm.score(TEXT), small_lm.score(TEXT))
    assert NGramLM.from_arpa(tmp_path / "bom", encoding="utf-8-sig").vocab_size == 4


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_is_refused(encoding: str, tmp_path: Path) -> None:
    path = write(tmp_path / "wide.arpa", SMALL_ARPA.lstrip().encode(encoding))
    with pytest.raises(FormatError, match=r"wide\.arpa.* is UTF-16 text; expected"):
        NGramLM.from_arpa(path)
    with pytest.raises(FormatError, match="UTF-16"):
        read_arpa_words(path)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "iso8859-15", "mac-roman"])
def test_other_encodings(
    encoding: str, packed: bool, small_lm: NGramLM, tmp_path: Path, capsys: Any
) -> None:
    path = write(tmp_path / "x.arpa", in_words(WORDS).encode(encoding), packed)
    assert read_arpa_words(path, encoding=encoding) == WORDS
    vocab = [*WORDS, "日本"]  # a word that the encoding lacks
    for lm in (
        NGramLM.from_arpa(path, vocab=WORDS, encoding=encoding),
        NGramLM.from_arpa(path, vocab=vocab, encoding=encoding),
        read_lm(path, vocab=WORDS, encoding=encoding),
        read_kenlm(path, encoding=encoding)[0],
    ):
        np.testing.assert_array_equal(lm.score(TEXT), small_lm.score(TEXT))
    assert read_kenlm(path, encoding=encoding)[1] == WORDS
    (tmp_path / "words").write_text("\n".join(WORDS), encoding="utf-8")
    arguments = ["--vocab", str(tmp_path / "words"), "--encoding", encoding]
    assert main(["ngram", "convert", str(path), str(tmp_path / "x.lm"), *arguments]) == 0
    np.testing.assert_array_equal(NGramLM.load(tmp_path / "x.lm").score(TEXT), small_lm.score(TEXT))
    kenlm = ["ngram", "from-kenlm", str(path), str(tmp_path / "y.lm"), "--encoding", encoding]
    assert main([*kenlm, "--write-vocab", str(tmp_path / "vocab")]) == 0
    assert (tmp_path / "vocab").read_text(encoding="utf-8").split() == WORDS
    capsys.readouterr()


@pytest.mark.parametrize("packed", [False, True])
def test_another_encoding_that_is_not_named(packed: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "x.arpa", in_words(WORDS).encode("latin-1"), packed)
    hint = r"the file is not UTF-8: pass its encoding, such as encoding='latin-1'"
    with pytest.raises(
        FormatError, match=rf"x\.arpa:\d+: the word .caf\\xe9.*not in vocab.*{hint}"
    ):
        NGramLM.from_arpa(path, vocab=WORDS)
    with pytest.raises(FormatError, match=r"x\.arpa: the word b'caf\\xe9' is not utf-8; expected"):
        read_arpa_words(path)
    with pytest.raises(FormatError, match=r"the word \"café\" is not in vocab") as raised:
        NGramLM.from_arpa(path, vocab=["le"], encoding="latin-1")
    assert "encoding=" not in str(raised.value)


def test_a_message_is_cut_where_a_word_is_long(tmp_path: Path) -> None:
    word = "ü" * (5 << 20)  # 10 MB
    path = write(tmp_path / "long.arpa", in_words([word, *WORDS[1:]]))
    for vocab in (None, WORDS):
        with pytest.raises(FormatError, match=rf'"ü{{30}}\.\." \({10 << 20} bytes\)') as raised:
            NGramLM.from_arpa(path, vocab=vocab)
        assert len(str(raised.value)) < 500
    assert NGramLM.from_arpa(path, vocab=[word, *WORDS[1:]]).vocab_size == 4
    for line in ("ngram 1=" + "9" * 10_000, "-1.0\t" + "w " * 10_000, "x" * 10_000 + "\tw"):
        text = SMALL_ARPA.replace("-1.2\t3", line) if "\t" in line else f"\\data\\\n{line}\n"
        with pytest.raises(FormatError) as raised:
            NGramLM.from_arpa(write(path, text))
        assert len(str(raised.value)) < 500


def test_a_message_is_cut_between_characters(tmp_path: Path) -> None:
    for size in range(1, 5):
        word = "x" * size + "日" * 40
        path = write(tmp_path / "long.arpa", in_words(["le", word, "naïf", "ça"]))
        with pytest.raises(FormatError, match=f'"{"x" * size}日+\\.\\."') as raised:
            NGramLM.from_arpa(path, vocab=WORDS)
        assert "\\x" not in str(raised.value)


def test_gzipped_text_is_written_whole_and_the_same_each_time(
    small_lm: NGramLM, tmp_path: Path
) -> None:
    small_lm.to_arpa(tmp_path / "x.arpa.gz", vocab=WORDS)
    small_lm.to_arpa(tmp_path / "y.arpa", vocab=WORDS)
    packed = (tmp_path / "x.arpa.gz").read_bytes()
    assert gzip.decompress(packed) == (tmp_path / "y.arpa").read_bytes()
    write_lm(small_lm, tmp_path / "z.arpa.gz", vocab=WORDS)
    assert (tmp_path / "z.arpa.gz").read_bytes() == packed  # neither time nor name is in it
    again = NGramLM.from_arpa(tmp_path / "x.arpa.gz", vocab=WORDS)
    np.testing.assert_array_equal(again.score(TEXT), small_lm.score(TEXT))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.arpa.gz", "y.arpa", "z.arpa.gz"]


def test_a_failure_to_write_leaves_the_old_gzip_file(small_lm: NGramLM, tmp_path: Path) -> None:
    path = write(tmp_path / "x.arpa.gz", "before")
    with pytest.raises(ValueError, match="4 token ids"):
        small_lm.to_arpa(path, vocab=["a"])
    with pytest.raises(FileNotFoundError, match=r"cannot write .*none/x\.arpa\.gz: No such file"):
        small_lm.to_arpa(tmp_path / "none" / "x.arpa.gz")
    (tmp_path / "folder.gz").mkdir()
    with pytest.raises(IsADirectoryError, match=r"folder\.gz.*untouched"):
        small_lm.to_arpa(tmp_path / "folder.gz")
    assert path.read_bytes() == b"before"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["folder.gz", "x.arpa.gz"]


READERS: dict[str, Any] = {
    "from_arpa": NGramLM.from_arpa,
    "read_lm": read_lm,
    "read_kenlm": read_kenlm,
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
