"""Evaluation: comparison of strategies on the same prompts, cost models, and result tables."""

from __future__ import annotations

from lattice_bpd_kim2024.live.acceptance import compare_rules, compare_sampling
from lattice_bpd_kim2024.live.compare import Comparison, compare_strategies
from lattice_bpd_kim2024.live.table import render_table
from lattice_bpd_kim2024.live.tuning import tune_alpha
from lattice_bpd_kim2024.replay.replay import Recording, record
from lattice_bpd_kim2024.replay.strategies import STANDARD_SETTINGS, Setting, find_strategies
from lattice_bpd_kim2024.statistics import loop_share

__all__ = [
    "STANDARD_SETTINGS",
    "Comparison",
    "Recording",
    "Setting",
    "compare_rules",
    "compare_sampling",
    "compare_strategies",
    "find_strategies",
    "loop_share",
    "record",
    "render_table",
    "tune_alpha",
]
