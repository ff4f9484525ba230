"""Language models that score lattices: training, files, evaluation."""

from lattice_bpd.lm.arpa_files import read_arpa_words
from lattice_bpd.lm.convert import LmInfo, describe_lm, read_lm, write_lm
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.lm.training import (
    KatzWarning,
    RaggedIds,
    SmoothingWarning,
    TextScore,
    compare_lines,
)
from lattice_bpd.vocabulary import read_words

__all__ = [
    "KatzWarning",
    "LmInfo",
    "NGramLM",
    "RaggedIds",
    "SmoothingWarning",
    "TextScore",
    "compare_lines",
    "describe_lm",
    "read_arpa_words",
    "read_lm",
    "read_words",
    "write_lm",
]
