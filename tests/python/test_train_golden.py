"""Counts and Katz models against the outputs of another toolkit (OpenGrm NGram 1.3.6).

The data lies beside the checkout (../shared/data/golden, with a README that gives the formulas)
and is no part of the project; without it these tests are skipped. The hand-computed example of
test_train.py and the C++ tests need nothing.
"""

import numpy as np
import pytest

from golden import NEVER, find_golden, read_arpa, read_corpus, read_text, table_of, train_on
from lattice_bpd.lm import count_ngrams

# "3-2" in a file name: orders with a minimum count. The others are 1.
PATTERNS = {
    "3-2": {3: 2},
    "2-2_3p-2": {2: 2, 3: 2, 4: 2},
    "4-4": {4: 4},
    "3-2_4-4": {3: 2, 4: 4},
}
PROB_TOLERANCE = 2e-6  # log10; ours and theirs are rounded to float32 at different steps,
BACKOFF_TOLERANCE = 1e-4  # which shows in 1 - sum where only the 0.1 % was discounted


def corpus_of(path):
    return path.parents[1]


def min_counts_of(name, order):
    cutoffs = next((c for p, c in PATTERNS.items() if name.endswith(f"katz_{p}")), {})
    return [cutoffs.get(n, 1) for n in range(1, order + 1)]


def train_like(path):
    """Our LM of the golden model's corpus and options, and its words."""
    name = path.name.removesuffix(".gz").removesuffix(".arpa")
    order = int(name[1])
    return train_on(
        corpus_of(path),
        order,
        min_counts=min_counts_of(name, order),
        katz_k=3 if "katz_k3" in name else 5,
        full_count_of_counts="countprune_then" not in name,
    )


KATZ = (
    find_golden("*/arpa/o?.katz_k?.arpa*")
    + find_golden("*/edge_*/arpa/o?.katz_k?.arpa*")
    + find_golden("*/arpa/o?.countprune_*_katz_*.arpa*")
)


@pytest.mark.parametrize("path", KATZ)
def test_katz_models_equal_golden(path, tmp_path):
    lm, words = train_like(path)
    ours = table_of(lm, words, tmp_path)
    golden = read_arpa(read_text(path))
    assert ours.keys() == golden.keys()
    values = np.array([[*ours[ngram], *golden[ngram]] for ngram in golden])
    ours_prob, ours_backoff, golden_prob, golden_backoff = values.T
    events = golden_prob > NEVER  # ARPA has no number for <s>
    assert np.abs(ours_prob - golden_prob)[events].max() < PROB_TOLERANCE
    assert np.abs(ours_backoff - golden_backoff).max() < BACKOFF_TOLERANCE


@pytest.mark.parametrize("path", find_golden("*/counts/o?.count*.tsv*"))
def test_counts_equal_golden(path):
    sequences, words = read_corpus(corpus_of(path))
    order = int(path.name[1])
    pattern = path.name.split("countprune_")[-1].split(".")[0]
    cutoffs = PATTERNS.get(pattern, {})
    tables = count_ngrams(
        sequences,
        order,
        vocab_size=len(words),
        min_counts=[cutoffs.get(n, 1) for n in range(1, order + 1)],
    )
    names = [*words, "<s>", "</s>", "<unk>"]
    ours = {
        tuple(names[symbol] for symbol in ngram): int(count)
        for ngrams, counts in tables
        for ngram, count in zip(ngrams, counts, strict=True)
    }
    lines = [line.split("\t") for line in read_text(path).splitlines()]
    golden = {tuple(ngram.split(" ")): int(count) for ngram, count in lines}
    # The other toolkit prints <s> as a unigram with the number of sentences; it is no event.
    assert golden.pop(("<s>",)) == len(sequences)
    assert ours == golden
