"""Language models that score lattices, and their files."""

from lattice_bpd.lm.arpa_files import read_arpa_words
from lattice_bpd.lm.context import ContextNGram
from lattice_bpd.lm.convert import read_kenlm, read_lm, write_lm
from lattice_bpd.lm.info import LmInfo, describe_lm
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.lm.quantisation import quantise
from lattice_bpd.vocabulary import read_words

__all__ = [
    "ContextNGram",
    "LmInfo",
    "NGramLM",
    "describe_lm",
    "quantise",
    "read_arpa_words",
    "read_kenlm",
    "read_lm",
    "read_words",
    "write_lm",
]
