"""Decoding: draft, verify, keep what the target itself would have written."""

from __future__ import annotations

from lattice_bpd.decode.batch import decode_batch
from lattice_bpd.decode.controller import Controller, Experience
from lattice_bpd.decode.custom_generate import CustomGenerate
from lattice_bpd.decode.drafter_file import DrafterFile, load_drafter
from lattice_bpd.decode.drafters import (
    BlockDrafter,
    Drafter,
    LatticeDrafter,
    NoDrafter,
    OracleDrafter,
    TreeDrafter,
)
from lattice_bpd.decode.loop import DecodeResult, decode
from lattice_bpd.decode.model import DraftHeads, DraftingModel, StateHeads
from lattice_bpd.decode.neural_scorer import NeuralScorer
from lattice_bpd.decode.scorer_drafter import ScorerDrafter, ScorerWarning
from lattice_bpd.decode.spec_heads import SpecDrafterHeads
from lattice_bpd.decode.state import DecodeState
from lattice_bpd.decode.statistics import DecodeStats
from lattice_bpd.decode.strategies import STRATEGIES, generate, generate_batch, make_drafter

__all__ = [
    "STRATEGIES",
    "BlockDrafter",
    "Controller",
    "CustomGenerate",
    "DecodeResult",
    "DecodeState",
    "DecodeStats",
    "DraftHeads",
    "Drafter",
    "DrafterFile",
    "DraftingModel",
    "Experience",
    "LatticeDrafter",
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
