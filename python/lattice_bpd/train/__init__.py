"""Training: n-gram LMs (ngram, prune, mixture, perplexity), prediction heads of a model (heads)."""

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
    "KatzWarning",
    "RaggedIds",
    "SmoothingWarning",
    "TextScore",
    "count_ngrams",
    "count_prunable",
    "evaluate_ngram",
    "interpolate",
    "prune_ngram",
    "train_ngram",
    "tune_weights",
]
