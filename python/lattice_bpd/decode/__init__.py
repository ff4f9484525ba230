"""Decoding: draft, verify, keep what the target itself would have written."""

from __future__ import annotations

from lattice_bpd.decode.adaptive.controller import Controller
from lattice_bpd.decode.adaptive.experience import Experience
from lattice_bpd.decode.certificate.certificate import Certificate, CertificateError, CheckedPlace
from lattice_bpd.decode.constraint import (
    ConstrainedChooser,
    Constraint,
    ConstraintState,
    FstConstraint,
    GuidanceConstraint,
)
from lattice_bpd.decode.drafters.basic import (
    BlockDrafter,
    Drafter,
    LatticeDrafter,
    NoDrafter,
    OracleDrafter,
)
from lattice_bpd.decode.drafters.combined import CombinedDrafter
from lattice_bpd.decode.drafters.continuation import ContinuationDrafter
from lattice_bpd.decode.drafters.draft_model import DraftModelDrafter
from lattice_bpd.decode.drafters.failures import DraftError, DraftWarning
from lattice_bpd.decode.drafters.lookup import LookupDrafter
from lattice_bpd.decode.drafters.neural_scorer import NeuralScorer
from lattice_bpd.decode.drafters.sampled import DrawnTreeDrafter
from lattice_bpd.decode.drafters.scorer import ScorerDrafter, ScorerWarning
from lattice_bpd.decode.drafters.tree import TreeDrafter
from lattice_bpd.decode.huggingface.custom_generate import CustomGenerate
from lattice_bpd.decode.huggingface.generate import (
    STRATEGIES,
    generate,
    generate_batch,
    make_drafter,
)
from lattice_bpd.decode.loop.batch import decode_batch
from lattice_bpd.decode.loop.loop import DecodeResult, decode
from lattice_bpd.decode.state.model import DraftHeads, DraftingModel, StateHeads
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.decode.state.spec_heads import SpecDrafterHeads
from lattice_bpd.decode.state.statistics import DecodeStats
from lattice_bpd.decode.strategies.drafter_file import DrafterFile, load_drafter
from lattice_bpd.draft.sampled_nodes import DrawnNodes

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
