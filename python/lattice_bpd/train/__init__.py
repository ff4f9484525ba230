"""Training: n-gram LMs from token ids (ngram) or files (corpus), heads of a model (heads).

What changes n-gram LMs that are trained: prune, mixture; what measures them: perplexity.
"""

from lattice_bpd.lm.evaluation import TextScore, evaluate_ngram
from lattice_bpd.lm.interpolation import interpolate, tune_weights
from lattice_bpd.lm.pruning import count_prunable, prune_ngram
from lattice_bpd.lm.training import (
    KatzWarning,
    RaggedIds,
    SmoothingWarning,
    count_ngrams,
    train_ngram,
)
from lattice_bpd.train.ngram.corpus_lm import train_corpus, train_counts
from lattice_bpd.train.ngram.counting import CountingProgress, count_corpus, merge_counts
from lattice_bpd.train.ngram.counts_file import CountsInfo, read_counts_info
from lattice_bpd.train.text.corpus import Corpus

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
