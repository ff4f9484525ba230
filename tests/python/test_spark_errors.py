"""Errors of Spark users, and their messages."""

import json

import pytest

for module in ("pyspark", "pyarrow", "pandas"):
    pytest.importorskip(module, reason=f"{module} is missing: make test-spark")

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from lattice_bpd import FormatError, _core  # noqa: E402
from lattice_bpd.cli import spark as command  # noqa: E402
from lattice_bpd.train import spark as cluster  # noqa: E402
from lattice_bpd.train.spark import tokenizer_files  # noqa: E402
from lattice_bpd.train.spark.errors import clear_errors  # noqa: E402
from lattice_bpd.train.spark.selection import _to_doubles, _to_ordered  # noqa: E402
from lattice_bpd.train.spark.session import check_java  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pyspark.*"),
]


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("a\nb\n<unk>")
    return str(path)


def count(spark, path, **options):
    return cluster.count_corpus(cluster.read_corpus(spark, str(path), **options), 2, partitions=2)


def test_without_java(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match=r"needs Java 17 or later and there is none; install it"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(OSError, match=r"JAVA_HOME is .*gone, which has no bin/java"):
        check_java()


def test_a_column_that_is_not_there(spark, words, tmp_path):
    pq.write_table(pa.table({"url": ["u"], "n": [1]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"no column 'text'; its columns are: url, n; give one"):
        count(spark, tmp_path / "x.parquet", tokenizer=words)
    with pytest.raises(ValueError, match=r"column 'n' is of type bigint; expected string, or"):
        count(spark, tmp_path / "x.parquet", tokenizer=words, field="n")


def test_a_json_field_that_is_not_there(spark, words, tmp_path):
    (tmp_path / "x.jsonl").write_text(json.dumps({"body": "a b", "n": 1}) + "\n")
    with pytest.raises(FormatError, match=r"no text in field 'text'; its text fields are: body"):
        count(spark, tmp_path / "x.jsonl", tokenizer=words)


def test_no_file_and_no_text(spark, words, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.txt"):
        count(spark, tmp_path / "gone.txt", tokenizer=words)
    (tmp_path / "empty.txt").write_text(" \n")
    counts = count(spark, tmp_path / "empty.txt", tokenizer=words)
    with pytest.raises(ValueError, match=r"the corpus has no text: 0 sequences"):
        cluster.train_counts(counts)


def test_token_ids_outside_the_vocabulary(spark, tmp_path):
    pq.write_table(pa.table({"ids": [[1, 2], [7]]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"token id 7 is outside the vocabulary; expected 0\.\.4"):
        count(spark, tmp_path / "x.parquet", field="ids", vocab_size=5)
    with pytest.raises(ValueError, match=r"token ids need the size of the vocabulary"):
        count(spark, tmp_path / "x.parquet", field="ids")


def test_text_that_is_not_utf8(spark, words, tmp_path):
    (tmp_path / "x.txt").write_bytes(b"a b \xff b\n")
    with pytest.raises(FormatError, match=r"x\.txt: text that is not UTF-8 \(.*iconv"):
        count(spark, tmp_path / "x.txt", tokenizer=words)


def test_a_tokenizer_that_cannot_be_put_on_an_executor(spark, words, monkeypatch, tmp_path):
    monkeypatch.setattr(tokenizer_files.tempfile, "tempdir", str(tmp_path / "gone"))
    files, size = tokenizer_files.read_tokenizer(words)
    assert size == 3
    with pytest.raises(OSError, match=r"words\.txt: the tokenizer cannot be written on"):
        tokenizer_files.load_here(files)
    with pytest.raises(FileNotFoundError, match=r"no such file; expected a tokenizer"):
        count(spark, tmp_path / "x.txt", tokenizer=str(tmp_path / "gone.json"))


def test_options_out_of_range(spark, words, tmp_path):
    (tmp_path / "x.txt").write_text("a b\nb a\n")
    corpus = cluster.read_corpus(spark, str(tmp_path / "x.txt"), tokenizer=words)
    with pytest.raises(ValueError, match=r"order is 7; expected 1\.\.6"):
        cluster.count_corpus(corpus, 7)
    with pytest.raises(ValueError, match="partitions is 0; expected 1 or more"):
        cluster.count_corpus(corpus, 2, partitions=0)
    counts = cluster.count_corpus(corpus, 2, partitions=1)
    with pytest.raises(ValueError, match=r"smoothing is 'kneser_ney'; expected katz, witten_bell"):
        cluster.train_counts(counts, smoothing="kneser_ney")
    with pytest.raises(ValueError, match=r"min_counts has 1 entries; expected 2"):
        cluster.train_counts(counts, min_counts=[1])
    with pytest.raises(ValueError, match=r"katz_k is 99; expected 1\.\.32"):
        cluster.train_counts(counts, katz_k=99)
    with pytest.raises(ValueError, match="unknown file type"):
        cluster.read_corpus(spark, str(tmp_path), tokenizer=words)
    with pytest.raises(ValueError, match=r"x\.txt: text needs a tokenizer"):
        cluster.read_corpus(spark, str(tmp_path / "x.txt"))


def test_errors_of_executors_lose_their_traces():
    trace = (
        "An exception was thrown from the Python worker.\n  Traceback (most recent call last):\n"
        'RuntimeError: lattice-bpd, in an executor: ["FormatError", "x: \\"bad\\" [1];\\nmore"];\n'
        "\tat org.apache.spark.api.python.BasePythonRunner"
    )
    with pytest.raises(FormatError, match=r'^x: "bad" \[1\];\nmore$'), clear_errors():
        raise RuntimeError(trace)
    missing = "ModuleNotFoundError: No module named 'lattice_bpd'"
    with pytest.raises(ImportError, match="ship an environment"), clear_errors():
        raise RuntimeError(missing)
    with pytest.raises(KeyError), clear_errors():
        raise KeyError("other")


def test_the_command_says_what_is_wrong(capsys):
    assert command.main(["x.parquet"]) == 2
    assert "expected INPUT, and -o LM or --parts DIR" in capsys.readouterr().err
    assert command.main(["--from-parts", "gone", "-o", "x.lm"]) == 2
    assert "gone/head: no such folder" in capsys.readouterr().err


def test_ordered_bits_of_doubles():
    values = np.array([-np.inf, -2.5, -1e-300, 0.0, 5e-324, 1.0, np.inf])
    ordered = _to_ordered(values)
    assert np.all(np.diff(ordered.astype(object)) > 0)
    assert np.array_equal(_to_doubles(ordered), values)


def test_assembling_refuses_what_is_not_whole():
    vocabulary = _core.Vocabulary(2, None, None, None)
    unigrams = np.zeros(5, np.float32)

    def add(assembler, ngrams):
        symbols = np.array(ngrams, np.uint32)
        zeros = np.zeros(len(ngrams), np.float32)
        assembler.add(symbols.shape[1], symbols, zeros, zeros)

    assembler = _core.TrieAssembler(vocabulary, unigrams)
    add(assembler, [[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="0 1 comes after 1 0; expected rising n-grams"):
        add(assembler, [[0, 1]])
    assembler = _core.TrieAssembler(vocabulary, unigrams)
    add(assembler, [[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="1 1 0 came, but not 1 1; expected every prefix"):
        add(assembler, [[0, 1, 0], [1, 1, 0]])
    with pytest.raises(ValueError, match="order 2 comes after order 3"):
        add(assembler, [[0, 1]])
    with pytest.raises(ValueError, match="symbol 9 is outside the vocabulary of 5"):
        add(_core.TrieAssembler(vocabulary, unigrams), [[9, 1]])
    with pytest.raises(ValueError, match="unigrams; expected 5"):
        _core.TrieAssembler(vocabulary, unigrams[:2])
