"""Training from files: corpora and counts of n-gram LMs here, model heads in heads/."""

from lattice_bpd.train.ngram.corpus_lm import (
    CountingProgress,
    CountsInfo,
    count_corpus,
    merge_counts,
    read_counts_info,
    train_corpus,
    train_counts,
)
from lattice_bpd.train.text.corpus import Corpus

__all__ = [
    "Corpus",
    "CountingProgress",
    "CountsInfo",
    "count_corpus",
    "merge_counts",
    "read_counts_info",
    "train_corpus",
    "train_counts",
]
