"""Reading the outputs of other toolkits that lie beside the checkout (../shared/data/golden).

They are not part of the project; without them the tests that need them are skipped. A README
there describes how each was made and restates the formulas.
"""

import gzip
import warnings
from pathlib import Path

import numpy as np
import pytest

from lattice_bpd import NGramLM

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "data" / "golden"
NEVER = -90.0  # log10: <s>, unseen vocabulary and <unk> lie below
Table = dict[tuple[str, ...], tuple[float, float]]  # n-gram: log10 probability and backoff


def find_golden(pattern):
    """Parameters (a file each) for every golden file that fits, or one that is skipped.

    Models pruned by count *after* estimation are left out: we drop counts before.
    """
    files = sorted(p for p in GOLDEN.glob(pattern) if "then_countprune" not in p.name)
    if not files:
        reason = f"no {GOLDEN.parents[1].name}/data/golden beside the checkout"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason))]
    return [pytest.param(p, id="/".join(p.relative_to(GOLDEN).parts)) for p in files]


def read_text(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()


def read_arpa(text: str) -> Table:
    """What the file lists, without unigrams that never occur (but with <s>, for its backoff)."""
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


def read_corpus(directory: Path) -> tuple[list[np.ndarray], list[str]]:
    lines = (directory / "train.ids").read_text().splitlines()
    words = (directory / "vocab.txt").read_text().split("\n")
    return [np.array(line.split(), dtype=np.int32) for line in lines], [w for w in words if w]


def train_on(directory: Path, order: int, **options) -> tuple[NGramLM, list[str]]:
    """Our LM of a golden corpus, and its words."""
    sequences, words = read_corpus(directory)
    options = {"vocab_size": len(words), **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return NGramLM.train(sequences, order, **options), words


def table_of(lm: NGramLM, words: list[str], folder: Path) -> Table:
    """The LM through its ARPA text, in words."""
    path = folder / "ours.arpa"
    lm.to_arpa(path)
    named = {str(i): word for i, word in enumerate(words)}
    numbered = read_arpa(path.read_text())
    return {tuple(named.get(w, w) for w in ngram): value for ngram, value in numbered.items()}


def largest_differences(ours: Table, golden: Table) -> tuple[float, float]:
    """Of log10 probabilities (without <s>) and of log10 backoffs, over n-grams of both."""
    both = [ngram for ngram in golden if ngram in ours]
    probs = [abs(ours[g][0] - golden[g][0]) for g in both if g != ("<s>",)]
    return max(probs), max(abs(ours[g][1] - golden[g][1]) for g in both)
