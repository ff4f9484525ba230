"""Counting and training out of core: equal to memory, merge, resume, budgets, a full disk."""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from counted_ngrams import count_ngrams
from lattice_bpd import NGramLM, _core
from lattice_bpd.train import (
    Corpus,
    count_corpus,
    merge_counts,
    read_counts_info,
    train_corpus,
    train_counts,
)
from lattice_bpd.watcher import Watcher

V = 300
SMALL = (1 << 16) + 32 * (V + 3)  # the smallest budget: some 2,500 tokens at once


def write_shards(folder, seed, count=4, size=6000):
    """Files of token ids with sequences that end in token id 0, and all of them in memory."""
    rng = np.random.default_rng(seed)
    sequences = []
    for shard in range(count):
        ids = (rng.zipf(1.2, size) % V).astype(np.uint16)
        ids[rng.random(size) < 0.01] = 0
        ids[-1] = 0
        ids.tofile(folder / f"{shard}.bin")
        sequences += [part.astype(np.int32) for part in np.split(ids, np.flatnonzero(ids == 0) + 1)]
    return [sequence for sequence in sequences if len(sequence)]


def corpus_of(*paths):
    return Corpus(paths, vocab_size=V, eos_id=0)


def tables(path, order):
    counter = _core.CorpusCounter(V, order, SMALL, "", None, 0, None, 2)
    counter.add_file(str(path))
    return counter.tables([])


def assert_equal_tables(actual, expected):
    for (symbols, counts), (other_symbols, other_counts) in zip(actual, expected, strict=True):
        assert np.array_equal(symbols, other_symbols)
        assert np.array_equal(counts, other_counts)


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


def test_counts_above_32_bits_add_up(tmp_path):
    path = str(tmp_path / "counts")
    counter = _core.CorpusCounter(V, 3, SMALL, "", None, None, None, 1)
    counter.add(np.full(5, V - 1, np.int32), np.array([0, 5]), False, False)
    counter.save(path, "")
    for _ in range(41):
        doubled = _core.CorpusCounter(V, 3, SMALL, "", None, None, None, 1)
        doubled.add_file(path)
        doubled.add_file(path)
        doubled.save(path, "")
    final = _core.CorpusCounter(V, 3, SMALL, "", None, None, None, 1)
    final.add_file(path)
    assert [int(counts.max()) for _, counts in final.tables([])] == [n << 41 for n in (5, 4, 3)]


class Steps(Watcher):
    """Keeps the notes of all steps; each is of 1,000 bytes."""

    def __init__(self, limit=999):
        self.total, self.notes, self.limit = None, [], limit

    def begin(self, stage, total=None):
        assert stage == "text"
        self.total = total

    def advance(self, note, **_):
        self.notes.append(note)
        if len(self.notes) == self.limit:
            raise KeyboardInterrupt


@pytest.fixture
def _small_steps(monkeypatch):
    monkeypatch.setattr("lattice_bpd.train.corpus._STEP", 1000)


@pytest.mark.usefixtures("_small_steps")
def test_resuming_leaves_out_what_is_counted(tmp_path):
    sequences = write_shards(tmp_path, 3)
    output = tmp_path / "counts"
    count_corpus(corpus_of(tmp_path / "0.bin", tmp_path / "1.bin"), output, order=3)
    steps = Steps()
    count_corpus(corpus_of(tmp_path), output, order=3, resume=True, watcher=steps)
    assert steps.total == len(steps.notes) == 48
    first, last = (int(steps.notes[n].split()[0].replace(",", "")) for n in (0, -1))
    assert 17_000 < first < last  # those of three files
    expected = count_ngrams(sequences, 3, vocab_size=V, eos_id=0)
    assert_equal_tables(tables(output, 3), expected)
    before = output.stat().st_mtime_ns
    count_corpus(corpus_of(tmp_path), output, order=3, resume=True)  # nothing is left to do
    assert output.stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="counts of order 3; order is 4"):
        count_corpus(corpus_of(tmp_path), output, order=4, resume=True)


@pytest.mark.usefixtures("_small_steps")
def test_a_killed_run_leaves_its_last_checkpoint(tmp_path):
    sequences = write_shards(tmp_path, 4)
    output = tmp_path / "counts"

    options = {"order": 3, "memory": SMALL, "checkpoint_minutes": 0}
    with pytest.raises(KeyboardInterrupt):
        count_corpus(corpus_of(tmp_path), output, watcher=Steps(limit=30), **options)
    assert len(read_counts_info(output).sources) == 2
    count_corpus(corpus_of(tmp_path), output, resume=True, **options)
    assert_equal_tables(tables(output, 3), count_ngrams(sequences, 3, vocab_size=V, eos_id=0))


def run_with_small_files(limit, call):
    """Runs a call in a child process whose files may not grow above a limit: a full disk."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            call()
        except OSError as error:
            os.write(write, f"{error.errno} {error}".encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        return pipe.read()


def test_a_full_disk_says_how_much_is_needed(tmp_path, monkeypatch):
    write_shards(tmp_path, 5)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    output = tmp_path / "counts"
    output.write_bytes(b"old")
    names = {path.name for path in tmp_path.iterdir()}
    corpus = corpus_of(*(tmp_path / f"{i}.bin" for i in range(4)))

    def count():
        count_corpus(corpus, output, order=4, memory=SMALL, threads=1)

    message = run_with_small_files(4096, count)
    assert "cannot write a temporary file in" in message
    for part in ("bytes of this file were written, about", "are needed and", "are free", "TMPDIR"):
        assert part in message
    needed = int(message.split("written, about ")[1].split()[0])
    assert 8_000 < needed < 60_000  # a run of 2,500 tokens
    message = run_with_small_files(30_000, count)  # enough for the runs, not for the counts
    assert f"{output}" in message
    assert list((tmp_path / "temporary").iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == names
    assert output.read_bytes() == b"old"


# Trains within argv[1] bytes on 600,000 random ids, or prints what training says is needed.
TRAIN = """
import sys, warnings
from lattice_bpd.train import Corpus, train_corpus
def peak():
    # not getrusage, which counts the memory of the process that started this one
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
warnings.simplefilter("ignore")
memory, smoothing, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
def train(file, memory):
    corpus = Corpus([f"{folder}/{file}"], vocab_size=5000)
    return train_corpus(corpus, 3, smoothing=smoothing, memory=memory, threads=1)
train("small.npy", "64M")
before = peak()
try:
    lm = train("large.npy", memory)
    print("peak", peak() - before, sum(lm.num_ngrams))
except ValueError as error:
    print("refused", peak() - before, error)
"""


def run(memory, smoothing, folder):
    command = [sys.executable, "-c", TRAIN, str(memory), smoothing, str(folder)]
    env = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    kind, peak, words = done.stdout.split(" ", 2)
    return kind, int(peak), words


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc here")
@pytest.mark.parametrize("smoothing", ["katz", "modified_kneser_ney"])
def test_the_peak_stays_within_the_limit(smoothing, tmp_path):
    ids = np.random.default_rng(0).integers(0, 5000, 600_000).astype(np.int32)
    np.save(tmp_path / "large.npy", ids)
    np.save(tmp_path / "small.npy", ids[:1000])
    kind, early, words = run(8 << 20, smoothing, tmp_path)
    assert kind == "refused"
    needed = int(re.search(r"--memory (\d+)M", words)[1]) << 20
    batch = 12 << 20  # ids as they are read, which lie outside the budget
    assert early < (8 << 20) + batch < needed
    kind, peak, _ = run(needed, smoothing, tmp_path)
    assert kind == "peak"
    assert needed / 3 < peak < needed + batch
