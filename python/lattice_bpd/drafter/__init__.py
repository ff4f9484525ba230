"""Drafts: the p best paths through a lattice under head scores and an LM, as a list or a tree."""

from lattice_bpd.drafter.drafts import Drafts
from lattice_bpd.drafter.draw import DrawnTree, TargetNoise, draw_tree
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
    "DrawnTree",
    "KenlmScorer",
    "MixtureScorer",
    "NGramScorer",
    "TargetNoise",
    "TransitionScorer",
    "draw_tree",
    "rescore_fst",
    "rescore_lattice",
    "rescore_tree",
]
