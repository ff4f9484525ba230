"""Language models that score lattices."""

from lattice_bpd.lm.ngram import NGramLM, read_arpa_words

__all__ = ["NGramLM", "read_arpa_words"]
