"""Shards of token ids for tests of counting, and a budget that makes many runs of them."""

import numpy as np

from lattice_bpd.train import Corpus

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
