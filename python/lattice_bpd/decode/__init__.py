"""Decoding: draft, verify, keep what the target itself would have written."""

from __future__ import annotations

from lattice_bpd.decode.drafters import (
    BlockDrafter,
    Drafter,
    LatticeDrafter,
    NoDrafter,
    OracleDrafter,
)
from lattice_bpd.decode.loop import DecodeResult, decode
from lattice_bpd.decode.state import DecodeState
from lattice_bpd.decode.statistics import DecodeStats
from lattice_bpd.decode.strategies import STRATEGIES, generate

__all__ = [
    "STRATEGIES",
    "BlockDrafter",
    "DecodeResult",
    "DecodeState",
    "DecodeStats",
    "Drafter",
    "LatticeDrafter",
    "NoDrafter",
    "OracleDrafter",
    "decode",
    "generate",
]
