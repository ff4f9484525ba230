"""Rescoring of n-best lists and word lattices of recognizers; KenLM's interface over our LMs."""

from lattice_bpd_recognition.kenlm_interface import Model, install, read_word_lm
from lattice_bpd_recognition.lattice import (
    Lattice,
    LatticeError,
    LatticePath,
    RescoredLattice,
    rescore_lattice,
    rescore_lattices,
)
from lattice_bpd_recognition.lattice_files import (
    read_lattices,
    read_symbols,
    write_fst,
    write_kaldi,
)
from lattice_bpd_recognition.nbest import Hypothesis, Rescored, rescore_nbest
from lattice_bpd_recognition.nbest_files import NbestList, read_nbest, read_references
from lattice_bpd_recognition.tuning import Tuning, tune_weights

__all__ = [
    "Hypothesis",
    "Lattice",
    "LatticeError",
    "LatticePath",
    "Model",
    "NbestList",
    "Rescored",
    "RescoredLattice",
    "Tuning",
    "install",
    "read_lattices",
    "read_nbest",
    "read_references",
    "read_symbols",
    "read_word_lm",
    "rescore_lattice",
    "rescore_lattices",
    "rescore_nbest",
    "tune_weights",
    "write_fst",
    "write_kaldi",
]
