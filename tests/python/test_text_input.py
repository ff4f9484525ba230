"""Input files: any reader takes a BOM, and names what it cannot read and how to convert it."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import re
import subprocess
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
from lattice_bpd.cli.files import decode_argument, read_sequences, read_text, read_token_ids
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
    "bzip2 of nothing": (bz2.compress(b""), "bzip2 file", "bunzip2 -k"),
    "xz": (lzma.compress(TEXT.encode()), "xz file", "unxz -k"),
    "lzma": (lzma.compress(TEXT.encode(), lzma.FORMAT_ALONE), "LZMA file", "unlzma -k"),
    "zip": (packed(zipped), "zip archive", "unzip -p"),
    "npz": (packed(lambda file: np.savez(file, np.zeros(3))), "zip archive", "unzip"),
    "npy": (packed(lambda file: np.save(file, np.zeros(3))), "NumPy array", r"\.npy"),
    "tar": (packed(tarred), "tar archive", "tar -xf"),
    "tar.gz": (gzip.compress(packed(tarred), mtime=0), "tar archive", "tar -xf"),
    "twice gzip": (gzip.compress(gzip.compress(b"a", mtime=0), mtime=0), "gzip file", "gunzip"),
    "UTF-16": (TEXT.encode("utf-16"), "UTF-16 text", "iconv -f UTF-16 -t UTF-8"),
    "UTF-16BE": (b"\xfe\xff" + TEXT.encode("utf-16-be"), "UTF-16 text", "iconv -f UTF-16"),
    "UTF-32": (TEXT.encode("utf-32"), "UTF-32 text", "iconv -f UTF-32"),
    "Git LFS": (POINTER.encode(), "a pointer of Git LFS", "git lfs pull --include"),
    "KenLM": (KENLM, "binary LM of KenLM", "lattice-bpd ngram from-kenlm"),
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
    "prompt": lambda path, _: read_text(path),
    "sequences": lambda path, _: read_sequences(path, None),
    "token ids": lambda path, _: read_token_ids(path),
    "words": lambda path, _: read_words(path),
    "ARPA": lambda path, _: NGramLM.from_arpa(path),
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


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.txt.zst", "a.json", "a.csv", "tokenizer.json"])
def test_pointers_of_git_lfs_are_named_whatever_their_ending(name, words, tmp_path):
    path = tmp_path / name
    path.write_text(POINTER)
    message = f"{name} is a pointer of Git LFS; expected .*: git lfs pull --include {path}$"
    read = read_corpus
    if name == "tokenizer.json":
        pytest.importorskip("tokenizers")
        read = lambda path, words: Corpus([words], path)  # noqa: E731
    with pytest.raises(FormatError, match=message):
        read(path, words)


@pytest.mark.parametrize("kind", ["bzip2", "npy", "Git LFS", "zip"])
def test_files_of_token_ids_are_named_likewise(kind, tmp_path):
    data, name, command = FOREIGN[kind]
    for suffix in (".bin", ".npy"):
        path = tmp_path / f"ids{suffix}"
        path.write_bytes(data if len(data) % 2 == 0 else data + b"\n")
        if suffix == ".npy" and kind in ("npy", "zip"):
            continue
        with pytest.raises(FormatError, match=f"{name}; expected .*{command}"):
            list(Corpus([path], vocab_size=2**16).batches())
    np.savez(tmp_path / "a.npz", np.arange(3))
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    with pytest.raises(FormatError, match=r"archive of arrays; expected a \.npy file with one"):
        list(Corpus([tmp_path / "a.npy"], vocab_size=3).batches())


def command_of(path: Path, words: Path) -> str:
    with pytest.raises(FormatError) as raised:
        read_corpus(path, words)
    found = re.search(
        r"(?:convert it|unpack it|list of objects): (.*?)(?:; or name|$)", str(raised.value)
    )
    assert found, raised.value
    return found[1]


def run_command(command: str, folder: Path) -> None:
    tool = command.split()[0]
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if subprocess.run(["bash", "-c", f"command -v {tool}"], capture_output=True).returncode:
        pytest.skip(f"no {tool} here")
    subprocess.run(
        ["bash", "-ec", command], check=True, cwd=folder, env={**os.environ, "PATH": here}
    )


@pytest.mark.parametrize(
    ("kind", "file", "result"),
    [
        ("bzip2", "a b.txt.bz2", "a b.txt"), ("xz", "a b.txt.xz", "a b.txt"),
        ("zip", "a b.zip", "a b.txt"), ("UTF-16", "a b.txt", "a b.utf8"),
        ("UTF-16BE", "a.txt", "a.utf8"), ("UTF-32", "a.txt", "a.utf8"),
    ],
)  # fmt: skip
def test_the_commands_convert_text(kind, file, result, words, tmp_path):
    path = tmp_path / file
    path.write_bytes(FOREIGN[kind][0])
    run_command(command_of(path, words), tmp_path)
    assert read_corpus(tmp_path / result, words) == IDS


def as_table(kind: str) -> bytes:
    if kind in ("parquet", "arrow", "feather"):
        pyarrow = pytest.importorskip("pyarrow")
        table = pyarrow.Table.from_pylist(ROWS)
        file = io.BytesIO()
        if kind == "parquet":
            pytest.importorskip("pyarrow.parquet").write_table(table, file)
        elif kind == "feather":
            pytest.importorskip("pyarrow.feather").write_feather(table, file)
        else:
            with pytest.importorskip("pyarrow.ipc").new_stream(file, table.schema) as writer:
                writer.write_table(table)
        return file.getvalue()
    if kind == "json":
        return json.dumps(ROWS, indent=1).encode()
    comma = "\t" if kind == "tsv" else ","
    lines = [["n", "text"], ["1", ROWS[0]["text"]], ["2", '"the, ""\u2603"" cat"']]
    return "".join(comma.join(line) + "\r\n" for line in lines).encode("utf-8-sig")


@pytest.mark.parametrize(
    "file", ["a.parquet", "a b.arrow", "a.feather", "a.json", "A.CSV", "a.tsv", "a.csv.gz"]
)
def test_the_commands_convert_tables(file, words, tmp_path):
    path = tmp_path / file
    data = as_table(file.removesuffix(".gz").split(".")[1].lower())
    path.write_bytes(gzip.compress(data) if file.endswith(".gz") else data)
    run_command(command_of(path, words), tmp_path)
    (lines,) = ((tmp_path / f"{path.name.split('.')[0]}.jsonl").read_text().splitlines(),)
    assert [json.loads(line)["text"] for line in lines] == [row["text"] for row in ROWS]


@pytest.mark.parametrize("reader", ["corpus", "task", "prompt", "words", "ARPA"])
def test_a_byte_order_mark_is_no_text(reader, words, tmp_path):
    text = {"words": "\n".join(WORDS), "ARPA": ARPA}.get(reader, TEXT)
    path = tmp_path / "a.txt"
    results = []
    for data in (text.encode(), BOM + text.encode(), gzip.compress(BOM + text.encode())):
        path.write_bytes(data)
        result = READERS[reader](path, words)
        results.append(result.log_prob(0) if reader == "ARPA" else result)
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
    "text", ['[{"text": "the cat"}]', '[\n {"text": "the cat"}\n]', '{\n"text": "the cat"}']
)
def test_one_json_value_is_no_text(text, words, tmp_path, monkeypatch):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(FormatError, match="one JSON value; expected an object on each line"):
        read_corpus(tmp_path / "a.json", words)
    if text.startswith("["):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        with pytest.raises(FormatError, match="<standard input>: one JSON value"):
            read_corpus(Path("-"), words)


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


def test_fields_of_csv_may_be_long(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text\n" + "cat " * 50_000 + "\n")
    assert [len(text) for text in read_examples(path)] == [200_000]


@pytest.mark.parametrize("data", [b"\n\x0e\n\x05<unk>\x15\0\0", b"caf\xe9", b"", b"{}"])
def test_what_is_no_tokenizer_is_refused_as_such(data, tmp_path):
    pytest.importorskip("tokenizers")
    from lattice_bpd.cli.files import load_tokenizer
    from lattice_bpd.train.corpus import load_encoder

    path = tmp_path / "tokenizer.json"
    path.write_bytes(data)
    for load in (load_tokenizer, lambda path: load_encoder(str(path))):
        with pytest.raises(ValueError, match=r"tokenizer\.json: not a tokenizer .*; expected a"):
            load(path)


def test_a_tokenizer_may_have_a_byte_order_mark(tmp_path):
    pytest.importorskip("tokenizers")
    from lattice_bpd.cli.files import load_tokenizer
    from lattice_bpd_kim2024.small_models import train_byte_bpe

    path = tmp_path / "tokenizer.json"
    tokenizer = train_byte_bpe([TEXT * 9], 270)
    path.write_bytes(BOM + tokenizer.to_str().encode())
    assert load_tokenizer(path).encode(TEXT).ids == tokenizer.encode(TEXT).ids
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    assert read_corpus(tmp_path / "a.txt", path) == tokenizer.encode(TEXT).ids


def test_ids_to_keep_are_numbers(tmp_path):
    path = tmp_path / "ids.txt"
    path.write_text("3 4\n\n5\n")
    assert read_token_ids(path) == [3, 4, 5]
    path.write_text("3 4\nfive\n")
    with pytest.raises(ValueError, match=r"ids\.txt, line 2: 'five' is no token id"):
        read_token_ids(path)


def test_arguments_in_other_locales():
    escaped = "caf\u00e9".encode().decode("ascii", "surrogateescape")
    assert decode_argument(escaped, "--prompt") == "caf\u00e9"
    assert decode_argument("\u2603", "--prompt") == "\u2603"
    with pytest.raises(ValueError, match=r"--prompt: .* is not UTF-8"):
        decode_argument("caf\udce9", "--prompt")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer of bytes, in a folder whose name is not ASCII."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("tokenizers")
    from lattice_bpd_kim2024.small_models import build_small_gpt, train_byte_bpe

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("mod\u00e8le")
    model = build_small_gpt(300, hidden_size=32, num_layers=1, num_heads=3, max_positions=64)
    model.save_pretrained(folder)
    train_byte_bpe([TEXT * 9], 300).save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_no_text_is_lost_on_other_consoles(encoding, model_folder, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(TEXT + "\u2603", encoding="utf-8")
    output = tmp_path / "\u2603"
    commands = [
        ["generate", model_folder, "--prompt-file", prompt, "--max-new-tokens", 5],
        ["record", "--model", model_folder, "--task", "text", "--data", prompt, "--out", output,
         "--max-new-tokens", 5],
    ]  # fmt: skip
    for command, shown in zip(commands, (TEXT + "\u2603", str(output)), strict=True):
        raw = io.BytesIO()
        with monkeypatch.context() as patched:
            console = io.TextIOWrapper(raw, encoding=encoding)
            patched.setattr(sys, "stdout", console)
            assert main([str(argument) for argument in command]) == 0
        console.flush()
        expected = shown.encode(encoding, "backslashreplace").decode(encoding)
        assert expected in raw.getvalue().decode(encoding)
