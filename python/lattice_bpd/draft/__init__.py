"""Drafts: the best paths through a lattice under head scores and an LM, as a list or a tree."""

from lattice_bpd.draft.config import STRATEGIES, DraftConfig
from lattice_bpd.draft.draft_tree import DraftTree
from lattice_bpd.draft.drafts import Drafts
from lattice_bpd.draft.rescore import rescore_lattice, rescore_tree
from lattice_bpd.draft.rescore_fst import rescore_fst
from lattice_bpd.draft.sampled_tree import SampledTree, SharedNoise, sample_tree
from lattice_bpd.draft.scorers import (
    KenlmScorer,
    MixtureScorer,
    NGramScorer,
    TransitionScorer,
)

__all__ = [
    "STRATEGIES",
    "DraftConfig",
    "DraftTree",
    "Drafts",
    "KenlmScorer",
    "MixtureScorer",
    "NGramScorer",
    "SampledTree",
    "SharedNoise",
    "TransitionScorer",
    "rescore_fst",
    "rescore_lattice",
    "rescore_tree",
    "sample_tree",
]
