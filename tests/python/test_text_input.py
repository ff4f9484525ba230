"""Input files: any reader takes a BOM, and names what it cannot read and how to convert it."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_bpd import FormatError, NGramLM
from lattice_bpd.cli import main
from lattice_bpd.cli.files import check_argument, read_filled, read_sequences
from lattice_bpd.lm import read_lm
from lattice_bpd.text_input import BOM, parse_json
from lattice_bpd.train import Corpus
from lattice_bpd.vocabulary import read_words

TEXT = "the caf\u00e9 cat\nthe \u2603 cat\n"
WORDS = ["the", "caf\u00e9", "cat", "\u2603"]
IDS = [0, 1, 2, 0, 3, 2]
ROWS = [{"text": "the caf\u00e9 cat", "n": 1}, {"text": 'the, "\u2603" cat', "n": 2}]
ARPA = "\\data\\\nngram 1=3\n\n\\1-grams:\n-1\t<unk>\n-0.3\t0\n-0.5\t</s>\n\n\\end\\\n"


def packed(write: Callable[[io.BytesIO], Any]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def zipped(file: io.BytesIO) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", TEXT)


def tarred(file: io.BytesIO) -> None:
    with tarfile.open(fileobj=file, mode="w") as archive:
        info = tarfile.TarInfo("a.txt")
        info.size = len(TEXT.encode())
        archive.addfile(info, io.BytesIO(TEXT.encode()))


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
KENLM = b"mmap lm http://kheafield.com/code format version 5\n\x00\x00\x00\x00"
# Without a time of day, so that a test that is given it has the same name in every process.
FOREIGN = {
    "bzip2": (bz2.compress(TEXT.encode()), "bzip2 file", "bunzip2 -k"),
    "xz": (lzma.compress(TEXT.encode()), "xz file", "unxz -k"),
    "zip": (packed(zipped), "zip archive", "unzip -p"),
    "npy": (packed(lambda file: np.save(file, np.zeros(3))), "NumPy array", r"\.npy"),
    "tar": (packed(tarred), "tar archive", "tar -xf"),
    "tar.gz": (gzip.compress(packed(tarred), mtime=0), "tar archive", "tar -xf"),
    "twice gzip": (gzip.compress(gzip.compress(b"a", mtime=0), mtime=0), "gzip file", "gunzip"),
    "UTF-16": (TEXT.encode("utf-16"), "UTF-16 text", "iconv -f UTF-16 -t UTF-8"),
    "UTF-32": (TEXT.encode("utf-32"), "UTF-32 text", "iconv -f UTF-32"),
    "Git LFS": (POINTER.encode(), "a pointer of Git LFS", "git lfs pull --include"),
    "KenLM": (KENLM, "binary LM of KenLM", "lattice-bpd ngram convert .*--words"),
    "pickle": (pickle.dumps(TEXT), "a pickle", "another file"),
    "GGUF": (b"GGUF\x03\0\0\0", "a GGUF model", "another file"),
    "safetensors": (b"\x10\0\0\0\0\0\0\0" + b'{"a":{}}', "a safetensors file", "another file"),
}
"""What is no text: its bytes, its name in the message, and the command that converts it."""


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return path


def read_corpus(path: Path, words: Path, **options: Any) -> list[int]:
    corpus = Corpus([path], words, **options)
    return [token for batch in corpus.batches() for token in batch.token_ids.tolist()]


def read_examples(path: Path) -> list[str]:
    pytest.importorskip("torch")
    from lattice_bpd_kim2024.tasks import read_items

    return [item.fields["text"] for item in read_items(path)]


READERS: dict[str, Callable[[Path, Path], Any]] = {
    "corpus": read_corpus,
    "task": lambda path, _: read_examples(path),
    "prompt": lambda path, _: read_filled(path),
    "sequences": lambda path, _: read_sequences(path, None),
    "words": lambda path, _: read_words(path),
    "LM of any format": lambda path, _: read_lm(path),
    "LM": lambda path, _: NGramLM.load(path),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("reader", READERS)
def test_other_formats_are_named_with_a_command(reader, kind, words, tmp_path):
    data, name, command = FOREIGN[kind]
    if reader == "LM" and data.startswith(b"\x1f\x8b"):
        name, command = "a gzip file", "gunzip -k"  # an LM file is mapped, and not decompressed
    path = tmp_path / "my file.txt"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=f"my file.txt is .*{name}; expected .*{command}"):
        READERS[reader](path, words)


def test_the_command_unpacks_first(words, tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(FOREIGN["bzip2"][0], mtime=0))
    command = "; unpack it: gunzip -k .*a.txt.gz && bunzip2 -k .*a.txt"
    with pytest.raises(FormatError, match=f"{command}$"):
        read_corpus(tmp_path / "a.txt.gz", words)


@pytest.mark.parametrize("kind", ["bzip2", "npy", "Git LFS"])
def test_files_of_token_ids_are_named_likewise(kind, tmp_path):
    data, name, command = FOREIGN[kind]
    (tmp_path / "ids.bin").write_bytes(data if len(data) % 2 == 0 else data + b"\n")
    with pytest.raises(FormatError, match=f"{name}; expected .*{command}"):
        list(Corpus([tmp_path / "ids.bin"], vocab_size=2**16).batches())


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("a.csv", b"n,text\r\n1,a\r\n", "CSV"),
        ("a.tsv.gz", gzip.compress(b"n\ttext\r\n1\ta\r\n", mtime=0), "TSV"),
        ("a.parquet", b"PAR1\x15\x04\x15", "Parquet"),
        ("a.arrow", b"ARROW1\0\0", "Arrow"),
        ("a.json", b'[{"text": "the cat"}]', "one JSON value"),
    ],
)
def test_tables_are_converted_to_json_lines(name, data, kind, words, tmp_path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(FormatError, match=f"{kind}.*; expected .*a.jsonl"):
        read_corpus(tmp_path / name, words)


@pytest.mark.parametrize("reader", ["corpus", "task", "prompt", "words", "LM of any format"])
def test_a_byte_order_mark_is_no_text(reader, words, tmp_path):
    text = {"words": "\n".join(WORDS), "LM of any format": ARPA}.get(reader, TEXT)
    path = tmp_path / "a.txt"
    results = []
    for data in (text.encode(), BOM + text.encode(), gzip.compress(BOM + text.encode())):
        path.write_bytes(data)
        result = READERS[reader](path, words)
        results.append(result.log_prob(0) if reader == "LM of any format" else result)
    assert results[0] == results[1] == results[2]
    if reader == "corpus":
        assert results[0] == IDS


@pytest.mark.parametrize("suffix", [".jsonl", ".json", "-"])
def test_json_lines_by_name_and_by_content(suffix, words, tmp_path, monkeypatch):
    data = "".join(json.dumps(row) + "\n" for row in [ROWS[0], {"text": "cat"}]).encode()
    for content in (data, BOM + data, gzip.compress(data), data.rstrip()):
        path = tmp_path / f"a{suffix}"
        path.write_bytes(content)
        if suffix == "-":
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
            path = Path("-")
        assert read_corpus(path, words) == [0, 1, 2, 2]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"the cat\nthe \0 cat", r"line 2: byte 12 is NUL.*iconv -f UTF-16LE"),
        (TEXT.encode("utf-16-le"), r"line 1: byte 1 is NUL.*iconv -f UTF-16LE"),
        (BOM + b"the\ncat \xff", r"line 2: byte 11 \(0xff\) is not UTF-8"),
        (BOM + b"\0", r"line 1: byte 3 is NUL"),
    ],
)
@pytest.mark.parametrize("reader", ["corpus", "task", "prompt", "words", "sequences"])
def test_bytes_that_are_no_text_are_located(reader, data, message, words, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=message):
        READERS[reader](path, words)


def test_json_that_is_no_text():
    assert parse_json('"\\ud83d\\ude00 \\ud55c"', "here", "text") == "\U0001f600 \ud55c"
    with pytest.raises(FormatError, match=r"here: a string has the unpaired surrogate '\\ud83d'"):
        parse_json('{"a": "\\ud83d"}', "here", "an object")
    with pytest.raises(FormatError, match=r"here: not JSON .*; expected a list"):
        parse_json("[" * 200_000, "here", "a list")


def test_arguments_that_are_no_text():
    assert check_argument("\u2603", "--prompt") == "\u2603"
    with pytest.raises(ValueError, match=r"--prompt: .* is not UTF-8"):
        check_argument("caf\udce9", "--prompt")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_no_text_is_lost_on_other_consoles(encoding, words, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    output = tmp_path / "caf\u00e9 \u2603.counts"
    command = ["ngram", "count", tmp_path / "a.txt", "--tokenizer", words, "-o", output]
    raw = io.BytesIO()
    console = io.TextIOWrapper(raw, encoding=encoding)
    monkeypatch.setattr(sys, "stdout", console)
    assert main([str(argument) for argument in command]) == 0
    console.flush()
    expected = str(output).encode(encoding, "backslashreplace").decode(encoding)
    assert expected in raw.getvalue().decode(encoding)
