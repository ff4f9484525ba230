"""Counts and Katz models against the outputs of another toolkit (OpenGrm NGram 1.3.6).

The data lies beside the checkout (../shared/data/golden, with a README that gives the formulas)
and is no part of the project; without it these tests are skipped. The hand-computed example of
test_train.py and the C++ tests need nothing.
"""

import gzip
import warnings
from pathlib import Path

import numpy as np
import pytest

from lattice_bpd import NGramLM
from lattice_bpd.train import KatzWarning, count_ngrams, train_ngram

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "data" / "golden"

# "3-2" in a file name: orders with a minimum count. The rest is 1.
PATTERNS = {
    "3-2": {3: 2},
    "2-2_3p-2": {2: 2, 3: 2, 4: 2},
    "4-4": {4: 4},
    "3-2_4-4": {3: 2, 4: 4},
}
NEVER = -90.0  # log10: <s>, unseen vocabulary and <unk> lie below
PROB_TOLERANCE = 2e-6  # log10; ours and theirs are rounded to float32 at different places,
BACKOFF_TOLERANCE = 1e-4  # which shows in 1 - sum where only the 0.1 % was discounted


def find_cases(pattern):
    """Parameters (corpus directory, file) for every golden file that fits."""
    files = sorted(p for p in GOLDEN.glob(pattern) if "then_countprune" not in p.name)
    reason = f"no golden data at {GOLDEN.parents[2].name}/shared/data/golden beside the checkout"
    if not files:
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason))]
    return [pytest.param(p, id="/".join(p.relative_to(GOLDEN).parts)) for p in files]


def corpus_of(path):
    return path.parents[1]


def read_corpus(directory):
    lines = (directory / "train.ids").read_text().splitlines()
    words = (directory / "vocab.txt").read_text().split("\n")
    return [np.array(line.split(), dtype=np.int32) for line in lines], [w for w in words if w]


def read_text(path):
    return gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()


def read_arpa(text):
    """{n-gram: (log10 probability, log10 backoff or 0)}, without what never occurs."""
    ngrams = {}
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) < 2:
            continue
        log10_prob = float(fields[0])
        ngram = tuple(fields[1].split(" "))
        if log10_prob > NEVER or ngram == ("<s>",):
            ngrams[ngram] = (log10_prob, float(fields[2]) if len(fields) > 2 else 0.0)
    return ngrams


def min_counts_of(name, order):
    cutoffs = next((c for p, c in PATTERNS.items() if name.endswith(f"katz_{p}")), {})
    return [cutoffs.get(n, 1) for n in range(1, order + 1)]


def train_like(path):
    """Our ARPA of the golden model's corpus and options, in words."""
    name = path.name.removesuffix(".gz").removesuffix(".arpa")
    sequences, words = read_corpus(corpus_of(path))
    order = int(name[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KatzWarning)
        lm = train_ngram(
            sequences,
            order,
            vocab_size=len(words),
            min_counts=min_counts_of(name, order),
            katz_k=3 if "katz_k3" in name else 5,
            full_count_of_counts="countprune_then" not in name,
        )
    return lm, words


def arpa_in_words(lm: NGramLM, words, path):
    lm.to_arpa(path)
    numbered = read_arpa(path.read_text())
    named = {str(i): word for i, word in enumerate(words)}
    return {tuple(named.get(w, w) for w in ngram): v for ngram, v in numbered.items()}


KATZ = (
    find_cases("*/arpa/o?.katz_k?.arpa*")
    + find_cases("*/edge_*/arpa/o?.katz_k?.arpa*")
    + find_cases("*/arpa/o?.countprune_*_katz_*.arpa*")
)


@pytest.mark.parametrize("path", KATZ)
def test_katz_models_equal_golden(path, tmp_path):
    lm, words = train_like(path)
    ours = arpa_in_words(lm, words, tmp_path / "ours.arpa")
    golden = read_arpa(read_text(path))
    assert ours.keys() == golden.keys()
    values = np.array([[*ours[ngram], *golden[ngram]] for ngram in golden])
    ours_prob, ours_backoff, golden_prob, golden_backoff = values.T
    events = golden_prob > NEVER  # ARPA has no number for <s>
    assert np.abs(ours_prob - golden_prob)[events].max() < PROB_TOLERANCE
    assert np.abs(ours_backoff - golden_backoff).max() < BACKOFF_TOLERANCE


@pytest.mark.parametrize("path", find_cases("*/counts/o?.count*.tsv*"))
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
