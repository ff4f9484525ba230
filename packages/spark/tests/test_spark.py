"""Training on Spark, in local mode: equal to the local trainer, and clear errors.

Skipped where pyspark, pyarrow, pandas or Java is missing.
"""

import json
import os
import shutil
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from counted_ngrams import count_ngrams
from lattice_bpd import FormatError, NGramLM, _core
from lattice_bpd.cli import main
from lattice_bpd.lm import write_lm
from lattice_bpd.train import Corpus, count_corpus, train_corpus

for module in ("pyspark", "pyarrow", "pandas"):
    pytest.importorskip(module, reason=f"{module} is missing: make test-spark")

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

import lattice_bpd_spark as cluster  # noqa: E402
from lattice_bpd_spark.session import clear_errors  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::lattice_bpd.lm.training.SmoothingWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pyspark.*"),
]

V = 60
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "ran", "<unk>"]


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A Spark session on this machine, set up for small jobs."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("no Java on this machine")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = cluster.start_session(
            "local[2]",
            spark_ui_enabled="false",
            spark_ui_showConsoleProgress="false",
            spark_driver_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            spark_driver_memory="1g",
            spark_sql_shuffle_partitions="2",
            spark_sql_adaptive_enabled="false",
            spark_sql_codegen_wholeStage="false",
            spark_sql_execution_arrow_maxRecordsPerBatch="1000",
        )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def sequences():
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 40, 800)
    return [(rng.zipf(1.3, int(length)) % V).astype(np.int32) for length in lengths]


@pytest.fixture(scope="module")
def parquet(sequences, tmp_path_factory):
    """Token ids in three files, whose order is not that of the sequences."""
    folder = tmp_path_factory.mktemp("ids")
    for i in range(3):
        rows = [sequence.tolist() for sequence in sequences[2 - i :: 3]]
        pq.write_table(pa.table({"ids": rows}), folder / f"{i}.parquet")
    return str(folder)


def read_ids(spark, paths, **options):
    return cluster.read_corpus(spark, paths, format="parquet", field="ids", vocab_size=V, **options)


@pytest.fixture(scope="module")
def counts(spark, parquet):
    return cluster.count_corpus(read_ids(spark, parquet), 4)


def listed(counts):
    """Every n-gram of order 2 and above with its count."""
    runs = [row["run"] for row in counts.frame.select("run").collect()]
    tables = _core.list_runs([_core.merge_runs([bytes(run) for run in runs])], [])
    return [(symbols, occurrences) for symbols, occurrences, _ in tables]


def assert_equal_lms(lm, expected, tmp_path):
    lm.save(tmp_path / "spark.lm")
    expected.save(tmp_path / "expected.lm")
    write_lm(lm, tmp_path / "spark.arpa")
    write_lm(expected, tmp_path / "expected.arpa")
    assert lm.num_ngrams == expected.num_ngrams
    pairs = zip(
        (tmp_path / "spark.arpa").read_text().splitlines(),
        (tmp_path / "expected.arpa").read_text().splitlines(),
        strict=True,
    )
    different = [(a, b) for a, b in pairs if a != b]
    for a, b in different:
        (a_prob, a_ngram, *a_backoff), (b_prob, b_ngram, *b_backoff) = a.split("\t"), b.split("\t")
        assert a_ngram == b_ngram
        numbers = zip([a_prob, *a_backoff], [b_prob, *b_backoff], strict=True)
        assert all(abs(float(x) - float(y)) * np.log(10) < 1e-6 for x, y in numbers)


def test_counts_are_those_of_one_machine(counts, sequences):
    expected = count_ngrams(sequences, 4, vocab_size=V)
    for (symbols, numbers), (other_symbols, other_numbers) in zip(
        listed(counts), expected[1:], strict=True
    ):
        assert np.array_equal(symbols, other_symbols)
        assert np.array_equal(numbers, other_numbers)
    summary = counts.summarize([])
    seen = expected[0][0][:, 0]
    assert np.array_equal(summary.counts[seen], expected[0][1])
    assert summary.counts.sum() == expected[0][1].sum()
    assert summary.num_sequences == len(sequences)
    for order, (_, numbers) in enumerate(expected, 1):
        n_r = np.bincount(numbers[numbers < 34].astype(np.int64), minlength=34)
        assert np.array_equal(summary.count_of_counts[order - 1], n_r)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"min_counts": [1, 1, 2, 4], "katz_k": 7},
        {"min_counts": [2, 1, 3, 2]},  # not rising: what rarer n-grams need comes back
        {"min_counts": [3, 3, 4, 4], "full_count_of_counts": False, "unseen": "uniform"},
        {"min_counts": [1, 2, 900, 900], "smoothing": "absolute"},  # a lower order
    ],
)
def test_lms_are_those_of_one_machine(options, counts, sequences, tmp_path):
    lm = cluster.train_counts(counts, **options)
    expected = NGramLM.train(sequences, 4, vocab_size=V, **options)
    assert lm.order == expected.order
    assert_equal_lms(lm.collect(), expected, tmp_path)
    lm.release()


@pytest.mark.parametrize(("order", "partitions"), [(1, 1), (2, 5), (5, 2)])
def test_every_order_with_special_token_ids(order, partitions, spark, parquet, sequences, tmp_path):
    ids = {"bos_id": 5, "eos_id": 1, "unk_id": 9}
    corpus = read_ids(spark, parquet, **ids)
    counts = cluster.count_corpus(corpus, order, partitions=partitions)
    lm = cluster.train_counts(counts, smoothing="witten_bell" if order == 2 else "katz")
    smoothing = "witten_bell" if order == 2 else "katz"
    expected = NGramLM.train(sequences, order, vocab_size=V, smoothing=smoothing, **ids)
    assert_equal_lms(lm.collect(), expected, tmp_path)
    counts.release()


def test_contexts_that_every_word_follows_give_the_remainder_to_eos(spark, tmp_path):
    rng = np.random.default_rng(1)
    sequences = [rng.integers(0, 3, int(n)).astype(np.int32) for n in rng.integers(1, 30, 200)]
    pq.write_table(pa.table({"ids": [s.tolist() for s in sequences]}), tmp_path / "x.parquet")
    corpus = cluster.read_corpus(spark, str(tmp_path / "x.parquet"), field="ids", vocab_size=3)
    counts = cluster.count_corpus(corpus, 3, partitions=3)
    lm = cluster.train_counts(counts, partitions=6)  # more buckets than symbols
    assert lm.buckets.count.max() > 1
    expected = NGramLM.train(sequences, 3, vocab_size=3)
    assert_equal_lms(lm.collect(), expected, tmp_path)
    pruned = cluster.prune_lm(lm, theta=1e-3)
    assert_equal_lms(pruned.collect(), expected.prune(theta=1e-3), tmp_path)


@pytest.mark.parametrize("how", [{"theta": 1e-4}, {"prune_to": 3000}, {"prune_to": 0}])
def test_pruned_lms_are_those_of_one_machine(how, counts, sequences, tmp_path):
    lm = cluster.train_counts(counts, min_counts=[1, 1, 2, 2])
    expected = NGramLM.train(sequences, 4, vocab_size=V, min_counts=[1, 1, 2, 2])
    pruned = cluster.prune_lm(lm, **how)
    local = expected.prune(**how)
    assert sum(local.num_ngrams) < sum(expected.num_ngrams)
    assert pruned.order == local.order
    assert_equal_lms(pruned.collect(), local, tmp_path)
    pruned.release()


def test_parts_are_assembled_elsewhere(counts, sequences, tmp_path):
    lm = cluster.train_counts(counts, min_counts=[1, 1, 2, 4])
    lm.save_parts(str(tmp_path / "parts"))
    expected = NGramLM.train(sequences, 4, vocab_size=V, min_counts=[1, 1, 2, 4])
    assert_equal_lms(cluster.assemble(tmp_path / "parts"), expected, tmp_path)
    (tmp_path / "parts" / "ngrams" / "_SUCCESS").unlink()
    with pytest.raises(FormatError, match="did not finish writing it"):
        cluster.assemble(tmp_path / "parts")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A vocabulary, and the same documents as text files, JSON lines and Parquet."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "words.txt").write_text("\n".join(WORDS))
    rng = np.random.default_rng(2)
    documents = []
    for _ in range(12):
        lines = [" ".join(rng.choice([*WORDS[:-1], "dog"], 8)) for _ in range(6)]
        lines[2] = ""
        lines[4] = " \r"
        documents.append("\n".join(lines) + "\n")
    for kind in ("text", "json", "parquet"):
        (folder / kind).mkdir()
    for i, document in enumerate(documents):
        (folder / "text" / f"{i:02}.txt").write_bytes(document.encode())
    rows = [json.dumps({"id": i, "body": text}) for i, text in enumerate(documents)]
    (folder / "json" / "a.jsonl").write_text("\n".join(rows) + "\n\n")
    pq.write_table(pa.table({"body": documents}), folder / "parquet" / "a.parquet")
    return folder


@pytest.mark.parametrize(
    ("kind", "boundaries"),
    [
        ("text", "line"),
        ("text", "paragraph"),
        ("text", "document"),
        ("json", "document"),
        ("json", "paragraph"),
        ("parquet", "line"),
    ],
)
def test_texts_of_every_kind_are_read_as_on_one_machine(kind, boundaries, spark, texts, tmp_path):
    words = str(texts / "words.txt")
    corpus = cluster.read_corpus(
        spark,
        str(texts / kind),
        format=kind,
        tokenizer=words,
        boundaries=boundaries,
        field="body",
    )
    counted = cluster.count_corpus(corpus, 3, partitions=2)
    local = texts / ("text" if kind == "text" else "json")
    expected = Corpus([local], tokenizer=words, boundaries=boundaries, field="body")
    info = count_corpus(expected, tmp_path / "counts", order=3)
    assert counted.summarize([]).num_sequences == info.num_sequences
    counter = _core.CorpusCounter(len(WORDS), 3, 1 << 20, "", None, None, None, 1)
    counter.add_file(str(tmp_path / "counts"))
    for (symbols, numbers), (other_symbols, other_numbers) in zip(
        listed(counted), counter.tables([])[1:], strict=True
    ):
        assert np.array_equal(symbols, other_symbols)
        assert np.array_equal(numbers, other_numbers)
    counted.release()


def test_the_command_trains_prunes_and_assembles(spark, texts, tmp_path, capsys):
    from lattice_bpd import NGramLM

    words = str(texts / "words.txt")
    options = ["--tokenizer", words, "--boundaries", "line", "--order", "3"]
    options += ["--partitions", "2", "--prune-to", "150"]
    output, parts = str(tmp_path / "a.lm"), str(tmp_path / "parts")
    inputs = [str(texts / "text" / "*.txt")]
    assert main(["ngram", "spark", *inputs, *options, "-o", output, "--parts", parts]) == 0
    assert main(["ngram", "spark", "--from-parts", parts, "-o", str(tmp_path / "b.lm")]) == 0
    assert "lattice-bpd: note: Katz: order" in capsys.readouterr().err
    expected = train_corpus(Corpus([texts / "text"], tokenizer=words, boundaries="line"), 3)
    expected = expected.prune(prune_to=150)
    for name in ("a.lm", "b.lm"):
        assert_equal_lms(NGramLM.load(tmp_path / name), expected, tmp_path)


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("a\nb\n<unk>")
    return str(path)


def count_text(spark, path, **options):
    return cluster.count_corpus(cluster.read_corpus(spark, str(path), **options), 2, partitions=2)


def test_a_column_that_is_not_there(spark, words, tmp_path):
    pq.write_table(pa.table({"url": ["u"], "n": [1]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"no column 'text'; its columns are: url, n; give one"):
        count_text(spark, tmp_path / "x.parquet", tokenizer=words)
    with pytest.raises(ValueError, match=r"column 'n' is of type bigint; expected string, or"):
        count_text(spark, tmp_path / "x.parquet", tokenizer=words, field="n")


def test_a_json_field_that_is_not_there(spark, words, tmp_path):
    (tmp_path / "x.jsonl").write_text(json.dumps({"body": "a b", "n": 1}) + "\n")
    with pytest.raises(FormatError, match=r"no text in field 'text'; its text fields are: body"):
        count_text(spark, tmp_path / "x.jsonl", tokenizer=words)


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
    assert main(["ngram", "spark", "x.parquet"]) == 2
    assert "expected INPUT, and -o LM or --parts DIR" in capsys.readouterr().err
    assert main(["ngram", "spark", "--from-parts", "gone", "-o", "x.lm"]) == 2
    assert "gone/head: no such folder" in capsys.readouterr().err


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
