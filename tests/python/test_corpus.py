"""Files of every kind become the same sequences; errors name file and position."""

import gzip
import io
import json

import numpy as np
import pytest

from lattice_bpd import FormatError
from lattice_bpd.train import Corpus, text_files
from lattice_bpd.train.corpus import load_encoder

TEXT = "the cat sat\non the mat\n\nthe end\r\n \nsat\n"
WORDS = ["the", "cat", "sat", "on", "mat", "end", "dog"]
LINES = [[0, 1, 2], [3, 0, 4], [0, 5], [2]]
DOCUMENT = [token_id for line in LINES for token_id in line]


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("\n".join(WORDS) + "\n")
    return path


def sequences_of(corpus):
    """All sequences, those that go on over several batches put together."""
    sequences = []
    for batch in corpus.batches():
        parts = np.split(batch.token_ids, batch.offsets[1:-1]) if len(batch.offsets) > 1 else []
        for i, part in enumerate(parts):
            if i == 0 and batch.continues_previous:
                sequences[-1] += part.tolist()
            else:
                sequences.append(part.tolist())
    return sequences


# Without a time of day, so that a test that is given it has the same name in every process.
CUT_GZIP = gzip.compress(b"the " * 99, mtime=0)[:-9]


def write(path, data):
    """Writes bytes in the format of the name."""
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".zst":
        zstandard = pytest.importorskip("zstandard")
        half = len(data) // 2  # two frames
        data = zstandard.compress(data[:half]) + zstandard.compress(data[half:])
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", ["a.txt", "a", "a.txt.gz", "a.txt.zst"])
def test_text_in_lines_paragraphs_and_documents(name, words, tmp_path):
    path = write(tmp_path / name, TEXT.encode())
    lines, paragraphs, document = (
        sequences_of(Corpus([path], words, boundaries=boundaries))
        for boundaries in ("line", "paragraph", "document")
    )
    assert lines == LINES
    assert paragraphs == [LINES[0] + LINES[1], LINES[2] + LINES[3]]
    assert document == [DOCUMENT]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.ndjson.zst"])
def test_json_lines(name, words, tmp_path):
    records = [{"text": "no", "body": TEXT}, {"body": "the dog"}, {"body": ""}]
    data = "\n".join(map(json.dumps, records)).encode()
    corpus = Corpus([write(tmp_path / name, data)], words, field="body")
    assert sequences_of(corpus) == [DOCUMENT, [0, 6]]
    corpus = Corpus([tmp_path / name], words, field="body", boundaries="line")
    assert sequences_of(corpus) == [*LINES, [0, 6]]


@pytest.mark.parametrize("seed", range(8))
def test_blocks_and_parts_change_nothing(seed, words, tmp_path, monkeypatch):
    rng = np.random.default_rng(seed)
    spaces = [" ", "\n", "\n\n", "\r\n", "\n\n\n", "  "]
    text = "".join(str(rng.choice(WORDS)) + str(rng.choice(spaces)) for _ in range(400))
    path = write(tmp_path / "a.txt", text.encode())
    boundaries = ("line", "paragraph", "document")[seed % 3]
    expected = sequences_of(Corpus([path], words, boundaries=boundaries))
    monkeypatch.setattr("lattice_bpd.text_input._CHUNK_BYTES", int(rng.integers(1, 40)))
    monkeypatch.setattr("lattice_bpd.train.corpus._CHARACTERS_AT_ONCE", int(rng.integers(1, 90)))
    monkeypatch.setattr(text_files, "_PART_CHARACTERS", int(rng.integers(8, 60)))
    sequences = sequences_of(Corpus([path], words, boundaries=boundaries))
    assert [part for part in sequences if part] == expected


def gpt2_style(tmp_path):
    library = pytest.importorskip("tokenizers")
    tokenizer = library.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([TEXT * 20, "Ünïcode 漢字"], vocab_size=300, min_frequency=1)
    tokenizer.save_model(str(tmp_path))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tokenizer


def test_bpe(tmp_path, monkeypatch):
    tokenizer = gpt2_style(tmp_path)
    text = TEXT * 50 + "Ünïcode 漢字 and more"
    path = write(tmp_path / "text", text.encode())
    expected = [tokenizer.encode(text).ids]
    monkeypatch.setattr("lattice_bpd.text_input._CHUNK_BYTES", 100)
    for given in (tmp_path / "tokenizer.json", tmp_path):
        corpus = Corpus([path], given)
        assert sequences_of(corpus) == expected
        assert corpus.size_of_vocabulary == tokenizer.get_vocab_size()
    with pytest.raises(FormatError, match=r"for a vocab\.json with merges give the folder"):
        load_encoder(str(tmp_path / "vocab.json"))
    pytest.importorskip("transformers")
    (tmp_path / "tokenizer.json").unlink()  # vocab.json and merges.txt remain
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert load_encoder(str(tmp_path)).encode([text])[0].tolist() == expected[0]


@pytest.mark.parametrize("kind", ["uint16", "uint32", "int64", "rows"])
def test_token_ids(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("lattice_bpd.train.id_files._IDS_AT_ONCE", 4)
    ids = [5, 1, 2, 3, 4, 6, 7, 8, 9, 0, 1, 2, 0]
    if kind in ("uint16", "uint32"):
        np.array(ids, kind).tofile(tmp_path / "ids.bin")
        corpus = Corpus([tmp_path / "ids.bin"], vocab_size=10, id_type=kind)
        assert corpus.size_of_vocabulary == 10
        assert sequences_of(corpus) == [ids]
        corpus.eos_id = 0
        assert sequences_of(corpus) == [ids[:10], ids[10:]]
    elif kind == "int64":
        np.save(tmp_path / "ids.npy", np.array(ids))
        assert sequences_of(Corpus([tmp_path / "ids.npy"], vocab_size=10)) == [ids]
    else:
        np.save(tmp_path / "ids.npy", np.array(ids[:12], np.uint8).reshape(4, 3))
        rows = [ids[:3], ids[3:6], ids[6:9], ids[9:12]]
        assert sequences_of(Corpus([tmp_path / "ids.npy"], vocab_size=10)) == rows


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "error", "message"),
    [
        ("a.txt", b"the\ncat \xff", FormatError, r"a\.txt, line 2: byte 8 \(0xff\) is not UTF-8"),
        ("a.txt", b"", ValueError, r"a\.txt: no text in the file"),
        ("a.txt", b"the cat\nthe cow", ValueError, r"a\.txt: the word 'cow' is not in .*s\.txt;"),
        ("a.jsonl", b'{"text": "the"}\n{', FormatError, r"a\.jsonl, line 2: not JSON"),
        ("a.jsonl", b"\n[1]", FormatError, r"line 2: a JSON list; expected an object"),
        ("a.jsonl", b'{"b": "", "a": "", "n": 1}', FormatError, r"'text'; .* fields are: a, b;"),
        ("a.txt.gz", CUT_GZIP, FormatError, "the gzip file is truncated"),
        ("a.txt.zst", b"\x28\xb5\x2f\xfd", FormatError, "the zstd file is truncated"),
        ("a.bin", b"\0\0\0", FormatError, "3 bytes are not a whole number of uint16 ids"),
        ("a.bin", b"\1\0\7\0", FormatError, r"a\.bin: token id 7 at index 1; expected 0\.\.6"),
        ("a.npy", npy(np.arange(99))[:-4], FormatError, r"a\.npy: not a \.npy .* or truncated"),
        ("a.npy", npy(np.zeros(3)), FormatError, r"shape \(3,\) and type float64; expected int"),
        ("a.npy", npy(np.array([1, -2])), FormatError, "token id -2 at index 1"),
    ],
)
def test_bad_files(name, data, error, message, words, tmp_path):
    if name.endswith(".zst"):
        pytest.importorskip("zstandard")
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(error, match=message):
        sequences_of(Corpus([path], words, vocab_size=7))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"inputs": []}, ValueError, "no input; expected files"),
        ({"inputs": ["missing"]}, FileNotFoundError, "missing: no such file or folder"),
        ({"inputs": ["a.txt", "a.txt"]}, ValueError, r"a\.txt: given more than once"),
        ({"tokenizer": None}, ValueError, r"a\.txt: text needs a tokenizer"),
        ({"vocab_size": 6}, ValueError, r"has 7 token ids, vocab_size is 6; expected at least"),
        ({"boundaries": "page"}, ValueError, "expected line, paragraph or document"),
        ({"tokenizer": "a.bin"}, ValueError, r"a\.bin: expected a tokenizer\.json"),
        ({"tokenizer": "empty"}, FileNotFoundError, r"empty/tokenizer\.json: no such file"),
        ({"tokenizer": "bad.json"}, FormatError, r"bad\.json: not a tokenizer"),
        ({"tokenizer": "twice.txt"}, FormatError, r"line 3: 'a' is a duplicate"),
    ],
)
def test_bad_options(options, error, message, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name, text in {"a.txt": "the", "a.bin": "\0\0", "bad.json": "{}"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "twice.txt").write_text("a\nb\na\n")
    if options.get("tokenizer") == "bad.json":
        pytest.importorskip("tokenizers")
    with pytest.raises(error, match=message):
        Corpus(**{"inputs": ["a.txt"], "tokenizer": words, **options})
