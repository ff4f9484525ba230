"""Training: n-gram LMs from token ids (ngram), prediction heads of a model (heads)."""

from lattice_bpd.train.ngram import KatzWarning, RaggedIds, count_ngrams, train_ngram

__all__ = ["KatzWarning", "RaggedIds", "count_ngrams", "train_ngram"]
