"""Evaluation: strategies x prompts, what they cost, and the tables that say so."""

from __future__ import annotations

from lattice_bpd.evaluate.compare import (
    STANDARD_SETTINGS,
    Comparison,
    Setting,
    StrategyResult,
    compare_strategies,
)
from lattice_bpd.evaluate.corpus import Corpus, draw_prompts, read_library_sources
from lattice_bpd.evaluate.loops import loop_share
from lattice_bpd.evaluate.table import render_table
from lattice_bpd.evaluate.tuning import tune_alpha

__all__ = [
    "STANDARD_SETTINGS",
    "Comparison",
    "Corpus",
    "Setting",
    "StrategyResult",
    "compare_strategies",
    "draw_prompts",
    "loop_share",
    "read_library_sources",
    "render_table",
    "tune_alpha",
]
