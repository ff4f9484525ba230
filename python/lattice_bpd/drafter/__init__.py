"""Drafts: the p best paths through a lattice under head scores and an LM, as a list or a tree."""

from lattice_bpd.drafter.drafts import Drafts
from lattice_bpd.drafter.rescore import rescore_lattice, rescore_tree
from lattice_bpd.drafter.rescore_fst import rescore_fst
from lattice_bpd.drafter.scorers import (
    KenlmScorer,
    MixtureScorer,
    NGramScorer,
    TransitionScorer,
)
from lattice_bpd.drafter.tree import DraftTree

__all__ = [
    "DraftTree",
    "Drafts",
    "KenlmScorer",
    "MixtureScorer",
    "NGramScorer",
    "TransitionScorer",
    "rescore_fst",
    "rescore_lattice",
    "rescore_tree",
]
