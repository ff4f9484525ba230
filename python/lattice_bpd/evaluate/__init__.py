"""Evaluation: strategies x prompts, what they cost, and the tables that say so."""

from __future__ import annotations

from lattice_bpd.evaluate.demo.library_text import Corpus, draw_prompts, read_library_sources
from lattice_bpd.evaluate.live.compare import Comparison, StrategyResult, compare_strategies
from lattice_bpd.evaluate.live.rule_quality import RuleResult, compare_rules
from lattice_bpd.evaluate.live.sampling_gains import SamplingGain, compare_sampling
from lattice_bpd.evaluate.live.table import render_table
from lattice_bpd.evaluate.live.tuning import tune_alpha
from lattice_bpd.evaluate.replay.positions import Rescorers
from lattice_bpd.evaluate.replay.replay import Recording, Replayed, record
from lattice_bpd.evaluate.replay.settings import (
    STANDARD_SETTINGS,
    TREE_SETTINGS,
    DraftOptions,
    Setting,
)
from lattice_bpd.evaluate.replay.strategies import STRATEGIES, Strategy, find_strategies
from lattice_bpd.evaluate.statistics.loops import loop_share

__all__ = [
    "STANDARD_SETTINGS",
    "STRATEGIES",
    "TREE_SETTINGS",
    "Comparison",
    "Corpus",
    "DraftOptions",
    "Recording",
    "Replayed",
    "Rescorers",
    "RuleResult",
    "SamplingGain",
    "Setting",
    "Strategy",
    "StrategyResult",
    "compare_rules",
    "compare_sampling",
    "compare_strategies",
    "draw_prompts",
    "find_strategies",
    "loop_share",
    "read_library_sources",
    "record",
    "render_table",
    "tune_alpha",
]
