"""Decoding: draft, verify, keep what the target itself would have written."""

from __future__ import annotations

from lattice_bpd.decode.batch import decode_batch
from lattice_bpd.decode.certificate import Certificate, CertificateError, CheckedPlace
from lattice_bpd.decode.combined import CombinedDrafter
from lattice_bpd.decode.constraint import (
    ConstrainedChooser,
    Constraint,
    ConstraintState,
    FstConstraint,
    GuidanceConstraint,
)
from lattice_bpd.decode.continuation import ContinuationDrafter
from lattice_bpd.decode.controller import Controller
from lattice_bpd.decode.custom_generate import CustomGenerate
from lattice_bpd.decode.draft_failures import DraftError, DraftWarning
from lattice_bpd.decode.draft_model import DraftModelDrafter
from lattice_bpd.decode.drafter_file import DrafterFile, load_drafter
from lattice_bpd.decode.drafters import (
    BlockDrafter,
    Drafter,
    LatticeDrafter,
    NoDrafter,
    OracleDrafter,
)
from lattice_bpd.decode.drawn_drafter import DrawnTreeDrafter
from lattice_bpd.decode.drawn_nodes import DrawnNodes
from lattice_bpd.decode.experience import Experience
from lattice_bpd.decode.lookup import LookupDrafter
from lattice_bpd.decode.loop import DecodeResult, decode
from lattice_bpd.decode.model import DraftHeads, DraftingModel, StateHeads
from lattice_bpd.decode.neural_scorer import NeuralScorer
from lattice_bpd.decode.scorer_drafter import ScorerDrafter, ScorerWarning
from lattice_bpd.decode.spec_heads import SpecDrafterHeads
from lattice_bpd.decode.state import DecodeState
from lattice_bpd.decode.statistics import DecodeStats
from lattice_bpd.decode.strategies import STRATEGIES, generate, generate_batch, make_drafter
from lattice_bpd.decode.tree_drafter import TreeDrafter

__all__ = [
    "STRATEGIES",
    "BlockDrafter",
    "Certificate",
    "CertificateError",
    "CheckedPlace",
    "CombinedDrafter",
    "ConstrainedChooser",
    "Constraint",
    "ConstraintState",
    "ContinuationDrafter",
    "Controller",
    "CustomGenerate",
    "DecodeResult",
    "DecodeState",
    "DecodeStats",
    "DraftError",
    "DraftHeads",
    "DraftModelDrafter",
    "DraftWarning",
    "Drafter",
    "DrafterFile",
    "DraftingModel",
    "DrawnNodes",
    "DrawnTreeDrafter",
    "Experience",
    "FstConstraint",
    "GuidanceConstraint",
    "LatticeDrafter",
    "LookupDrafter",
    "NeuralScorer",
    "NoDrafter",
    "OracleDrafter",
    "ScorerDrafter",
    "ScorerWarning",
    "SpecDrafterHeads",
    "StateHeads",
    "TreeDrafter",
    "decode",
    "decode_batch",
    "generate",
    "generate_batch",
    "load_drafter",
    "make_drafter",
]
