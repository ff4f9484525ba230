"""Decoding state: target and heads, state of each sequence, statistics."""

from __future__ import annotations

from lattice_bpd.decode.state.model import DraftHeads, DraftingModel
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.decode.state.statistics import DecodeStats

__all__ = [
    "DecodeState",
    "DecodeStats",
    "DraftHeads",
    "DraftingModel",
]
