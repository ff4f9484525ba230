"""Training on texts: corpora, n-gram LMs of any size, a target's own responses, draft heads."""

from lattice_bpd.train.corpus import Corpus
from lattice_bpd.train.corpus_lm import (
    CountsInfo,
    count_corpus,
    merge_counts,
    read_counts_info,
    train_corpus,
    train_counts,
)
from lattice_bpd.train.words import word_corpus

__all__ = [
    "Corpus",
    "CountsInfo",
    "count_corpus",
    "merge_counts",
    "read_counts_info",
    "train_corpus",
    "train_counts",
    "word_corpus",
]
