"""Language models that score lattices."""

from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.lm.words import read_arpa_words

__all__ = ["NGramLM", "read_arpa_words"]
