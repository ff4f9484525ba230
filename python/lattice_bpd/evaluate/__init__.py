"""Evaluation: comparison of strategies on the same prompts, cost models, and result tables."""

from __future__ import annotations

from lattice_bpd.evaluate.live.compare import Comparison, compare_strategies
from lattice_bpd.evaluate.live.rule_quality import compare_rules
from lattice_bpd.evaluate.live.sampling_gains import compare_sampling
from lattice_bpd.evaluate.live.table import render_table
from lattice_bpd.evaluate.live.tuning import tune_alpha
from lattice_bpd.evaluate.replay.replay import Recording, record
from lattice_bpd.evaluate.replay.settings import STANDARD_SETTINGS, Setting
from lattice_bpd.evaluate.replay.strategies import find_strategies
from lattice_bpd.evaluate.statistics.loops import loop_share

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
