"""The memory budget of training: kept where the LM fits, refused early where it does not."""

import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from counting_shards import SMALL, corpus_of, write_shards
from lattice_bpd.lm import KatzWarning
from lattice_bpd.train import count_corpus, train_corpus, train_counts

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
    return train_corpus(corpus, 3, smoothing=smoothing, memory=memory, temp_dir=folder, threads=1)
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
    done = subprocess.run(command, capture_output=True, text=True, check=True)
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


def test_a_refusal_says_what_to_do_and_changes_nothing(tmp_path):
    write_shards(tmp_path, 3)
    corpus = corpus_of(tmp_path)
    with pytest.raises(ValueError, match=r"the LM has \d+ n-grams; estimating .* --min-counts"):
        train_corpus(corpus, 4, memory=SMALL)
    count_corpus(corpus, tmp_path / "counts", order=4, memory=SMALL)  # counting needs no LM
    with pytest.raises(ValueError, match="--memory 2M"):
        train_counts(tmp_path / "counts", memory=SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KatzWarning)  # Zipf text
        assert train_counts(tmp_path / "counts", memory="2M").order == 4
