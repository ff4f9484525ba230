"""Counting out of core from Python: equal to memory, merge, resume, no leftover files."""

import numpy as np
import pytest

from counting_shards import SMALL, V, corpus_of, write_shards
from lattice_bpd import FormatError, NGramLM, _core
from lattice_bpd.lm import count_ngrams
from lattice_bpd.train import (
    Corpus,
    count_corpus,
    merge_counts,
    read_counts_info,
    train_corpus,
    train_counts,
)
from lattice_bpd.train.corpus_lm import parse_memory


def tables(path, order):
    counter = _core.CorpusCounter(V, order, SMALL, "", None, 0, None, 2)
    counter.add_file(str(path))
    return counter.tables([])


def assert_equal_tables(actual, expected):
    for (symbols, counts), (other_symbols, other_counts) in zip(actual, expected, strict=True):
        assert np.array_equal(symbols, other_symbols)
        assert np.array_equal(counts, other_counts)


@pytest.mark.parametrize("seed", range(6))
def test_out_of_core_equals_in_memory(seed, tmp_path):
    sequences = write_shards(tmp_path, seed)
    order = seed + 1
    expected = count_ngrams(sequences, order, vocab_size=V, eos_id=0)
    seen = []
    info = count_corpus(
        corpus_of(tmp_path), tmp_path / "c", order=order, memory=SMALL, on_progress=seen.append
    )
    assert max(progress.num_runs for progress in seen) > 2
    assert seen[-1].bytes_done == seen[-1].bytes_total == 4 * 6000 * 2
    assert_equal_tables(tables(tmp_path / "c", order), expected)
    assert info.num_tokens == 24000 - len(sequences)  # each ends with </s>, which is none
    assert (info.num_sequences, info.order, info.eos_id) == (len(sequences), order, 0)
    assert info.sources == tuple(str(tmp_path / f"{i}.bin") for i in range(4))


@pytest.mark.filterwarnings("ignore::lattice_bpd.lm.training.SmoothingWarning")
@pytest.mark.parametrize("smoothing", ["katz", "kneser_ney", "witten_bell", "absolute"])
def test_an_lm_from_a_corpus_or_counts_is_that_from_memory(smoothing, tmp_path):
    sequences = write_shards(tmp_path, 1)
    options = {"smoothing": smoothing, "min_counts": [1, 1, 2, 2]}
    expected = NGramLM.train(sequences, 4, vocab_size=V, eos_id=0, **options)
    corpus = corpus_of(tmp_path)
    count_corpus(corpus, tmp_path / "counts", order=5, memory=SMALL)
    for lm in (
        train_corpus(corpus, 4, memory="2M", **options),
        train_corpus(corpus, 4, memory="1G", **options),
        train_counts(tmp_path / "counts", 4, **options),
    ):
        lm.save(tmp_path / "a.lm")
        expected.save(tmp_path / "b.lm")
        assert (tmp_path / "a.lm").read_bytes() == (tmp_path / "b.lm").read_bytes()


def test_merging_does_not_depend_on_the_order_of_shards(tmp_path):
    sequences = write_shards(tmp_path, 2)
    for i in range(4):
        count_corpus(corpus_of(tmp_path / f"{i}.bin"), tmp_path / f"{i}.counts", order=3)
    paths = [tmp_path / f"{i}.counts" for i in range(4)]
    merge_counts(paths, tmp_path / "all")
    merge_counts([paths[2], paths[0]], tmp_path / "two")
    info = merge_counts([paths[3], tmp_path / "two", paths[1]], tmp_path / "two")  # in place
    expected = count_ngrams(sequences, 3, vocab_size=V, eos_id=0)
    assert_equal_tables(tables(tmp_path / "all", 3), expected)
    assert_equal_tables(tables(tmp_path / "two", 3), expected)
    assert len(info.sources) == 4
    with pytest.raises(ValueError, match=r"0\.bin: counted in more than one of the files"):
        merge_counts([paths[0], tmp_path / "all"], tmp_path / "bad")
    assert not (tmp_path / "bad").exists()
    twice = merge_counts([paths[0]] * 2, tmp_path / "bad", allow_repeats=True)
    assert twice.num_tokens == 2 * read_counts_info(paths[0]).num_tokens


def test_resuming_leaves_out_what_is_counted(tmp_path):
    sequences = write_shards(tmp_path, 3)
    output = tmp_path / "counts"
    count_corpus(corpus_of(tmp_path / "0.bin", tmp_path / "1.bin"), output, order=3)
    seen = []
    count_corpus(corpus_of(tmp_path), output, order=3, resume=True, on_progress=seen.append)
    assert seen[0].bytes_done > 2 * 6000 * 2
    assert seen[-1].bytes_done == 4 * 6000 * 2
    expected = count_ngrams(sequences, 3, vocab_size=V, eos_id=0)
    assert_equal_tables(tables(output, 3), expected)
    before = output.stat().st_mtime_ns
    count_corpus(corpus_of(tmp_path), output, order=3, resume=True)  # nothing is left to do
    assert output.stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="counts of order 3; order is 4"):
        count_corpus(corpus_of(tmp_path), output, order=4, resume=True)


def test_a_killed_run_leaves_its_last_checkpoint(tmp_path):
    sequences = write_shards(tmp_path, 4)
    output = tmp_path / "counts"

    class KilledError(Exception):
        pass

    def kill_in_the_third(progress):
        if progress.bytes_done > 2.5 * 6000 * 2 - 6000:
            raise KilledError

    options = {"order": 3, "memory": SMALL, "checkpoint_minutes": 0}
    with pytest.raises(KilledError):
        count_corpus(corpus_of(tmp_path), output, on_progress=kill_in_the_third, **options)
    assert len(read_counts_info(output).sources) == 2
    count_corpus(corpus_of(tmp_path), output, resume=True, **options)
    assert_equal_tables(tables(output, 3), count_ngrams(sequences, 3, vocab_size=V, eos_id=0))


@pytest.mark.parametrize("seed", range(3))
def test_damaged_counts_files_are_refused(seed, tmp_path):
    write_shards(tmp_path, 6)
    path = tmp_path / "counts"
    count_corpus(corpus_of(tmp_path / "0.bin"), path, order=3, memory=SMALL)
    good = path.read_bytes()
    rng = np.random.default_rng(seed)
    for _ in range(60):
        data = bytearray(good)
        if rng.random() < 0.3:
            data = data[: rng.integers(len(data))]
        else:
            data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        with pytest.raises(FormatError, match="counts"):
            tables(path, 3)
    path.write_bytes(good + b"\0" * 8)
    with pytest.raises(FormatError, match=r"without the mark of its end|appended"):
        tables(path, 3)
    path.write_bytes(b"\\data\\" * 20)
    with pytest.raises(FormatError, match="wrong magic number at byte 0"):
        tables(path, 3)


@pytest.mark.parametrize(
    ("text", "size"),
    [("2G", 2 << 30), ("1.5k", 1536), (77, 77), ("3MiB", 3 << 20), ("1T", 1 << 40)],
)
def test_sizes_of_memory(text, size):
    assert parse_memory(text) == size


def test_bad_options(tmp_path):
    write_shards(tmp_path, 7)
    corpus = corpus_of(tmp_path)
    with pytest.raises(ValueError, match="memory is 'much'"):
        count_corpus(corpus, tmp_path / "c", memory="much")
    with pytest.raises(ValueError, match="memory is 1000 bytes; counting 302 symbols needs"):
        count_corpus(corpus, tmp_path / "c", memory=1000)
    with pytest.raises(ValueError, match=r"order is 9; expected 1\.\.6"):
        count_corpus(corpus, tmp_path / "c", order=9)
    with pytest.raises(ValueError, match="no counts files"):
        merge_counts([], tmp_path / "c")
    with pytest.raises(FileNotFoundError):
        count_corpus(corpus, tmp_path / "c", memory=SMALL, temp_dir=tmp_path / "missing")
    count_corpus(corpus, tmp_path / "c")
    other = Corpus([tmp_path / "0.bin"], vocab_size=V + 1, id_type="uint16")
    count_corpus(other, tmp_path / "d")
    with pytest.raises(ValueError, match=r"d: its vocabulary is of size 301 .*expected 300"):
        merge_counts([tmp_path / "c", tmp_path / "d"], tmp_path / "e", allow_repeats=True)
