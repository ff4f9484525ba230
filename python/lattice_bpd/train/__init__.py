"""Training: n-gram LMs from token ids (ngram) or files (corpus), heads of a model (heads).

What changes n-gram LMs that are trained: prune, mixture; what measures them: perplexity.
"""

from lattice_bpd.train.corpus import Corpus
from lattice_bpd.train.corpus_lm import train_corpus, train_counts
from lattice_bpd.train.counting import CountingProgress, count_corpus, merge_counts
from lattice_bpd.train.counts_file import CountsInfo, read_counts_info
from lattice_bpd.train.mixture import interpolate, tune_weights
from lattice_bpd.train.ngram import (
    KatzWarning,
    RaggedIds,
    SmoothingWarning,
    count_ngrams,
    train_ngram,
)
from lattice_bpd.train.perplexity import TextScore, evaluate_ngram
from lattice_bpd.train.prune import count_prunable, prune_ngram

__all__ = [
    "Corpus",
    "CountingProgress",
    "CountsInfo",
    "KatzWarning",
    "RaggedIds",
    "SmoothingWarning",
    "TextScore",
    "count_corpus",
    "count_ngrams",
    "count_prunable",
    "evaluate_ngram",
    "interpolate",
    "merge_counts",
    "prune_ngram",
    "read_counts_info",
    "train_corpus",
    "train_counts",
    "train_ngram",
    "tune_weights",
]
