"""Drafters, which propose drafts for verification; all use the same decoding loop."""

from __future__ import annotations

from lattice_bpd.decode.drafters.chain import ChainDrafter
from lattice_bpd.decode.drafters.drafter import Drafter, NoDrafter
from lattice_bpd.decode.drafters.mixture import MixtureDrafter
from lattice_bpd.decode.drafters.neural_scorer import NeuralScorer
from lattice_bpd.decode.drafters.p_best import ArgmaxDrafter, PBestDrafter
from lattice_bpd.decode.drafters.proposals import DraftError, DraftWarning
from lattice_bpd.decode.drafters.scorer import ScorerDrafter
from lattice_bpd.decode.drafters.tree import SampledTreeDrafter, TreeDrafter
from lattice_bpd.draft.mixture import TextStore

__all__ = [
    "ArgmaxDrafter",
    "ChainDrafter",
    "DraftError",
    "DraftWarning",
    "Drafter",
    "MixtureDrafter",
    "NeuralScorer",
    "NoDrafter",
    "PBestDrafter",
    "SampledTreeDrafter",
    "ScorerDrafter",
    "TextStore",
    "TreeDrafter",
]
