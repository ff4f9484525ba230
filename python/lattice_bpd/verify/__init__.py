"""Verification: one call of the target says how many tokens of each draft it would have written."""

from __future__ import annotations

from lattice_bpd.verify.acceptance import (
    Acceptance,
    Distance,
    Exact,
    MinimumBlock,
    Rejection,
    RelaxedAcceptance,
    RelaxedChooser,
    Sampled,
    SpecDecPlusPlus,
    TopKMatch,
    Typical,
    Warp,
    parse_acceptance,
)
from lattice_bpd.verify.batch_cache import BatchCache
from lattice_bpd.verify.cache import check_cache
from lattice_bpd.verify.greedy import accept_lengths, greedy_tokens
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.recurrent import RecurrentCache
from lattice_bpd.verify.search import search_drafts, search_trees
from lattice_bpd.verify.seq2seq_target import Seq2SeqTarget
from lattice_bpd.verify.source_cache import Source, SourceCache
from lattice_bpd.verify.stacked_cache import StackedCache
from lattice_bpd.verify.target import CausalLMTarget, TargetModel, TargetOutput
from lattice_bpd.verify.verification import (
    FORMS,
    BatchVerification,
    Chooser,
    Offer,
    Verification,
    choose_form,
    verify_drafts,
    verify_trees,
)

__all__ = [
    "FORMS",
    "Acceptance",
    "BatchCache",
    "BatchVerification",
    "CausalLMTarget",
    "Chooser",
    "Distance",
    "Exact",
    "MinimumBlock",
    "Offer",
    "PrefixTree",
    "RecurrentCache",
    "Rejection",
    "RelaxedAcceptance",
    "RelaxedChooser",
    "Sampled",
    "Seq2SeqTarget",
    "Source",
    "SourceCache",
    "SpecDecPlusPlus",
    "StackedCache",
    "TargetModel",
    "TargetOutput",
    "TopKMatch",
    "Typical",
    "Verification",
    "Warp",
    "accept_lengths",
    "check_cache",
    "choose_form",
    "greedy_tokens",
    "parse_acceptance",
    "search_drafts",
    "search_trees",
    "verify_drafts",
    "verify_trees",
]
