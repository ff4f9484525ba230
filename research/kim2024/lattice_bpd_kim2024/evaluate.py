"""Evaluation: comparison of strategies on the same prompts, cost models, and result tables."""

from __future__ import annotations

from lattice_bpd_kim2024.live.compare import Comparison, compare_strategies
from lattice_bpd_kim2024.live.rule_quality import compare_rules
from lattice_bpd_kim2024.live.sampling_gains import compare_sampling
from lattice_bpd_kim2024.live.table import render_table
from lattice_bpd_kim2024.live.tuning import tune_alpha
from lattice_bpd_kim2024.replay.replay import Recording, record
from lattice_bpd_kim2024.replay.settings import STANDARD_SETTINGS, Setting
from lattice_bpd_kim2024.replay.strategies import find_strategies
from lattice_bpd_kim2024.statistics.loops import loop_share

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
