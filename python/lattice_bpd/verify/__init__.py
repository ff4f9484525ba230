"""Verification: one call of the target says how many tokens of each draft it would have written."""

from __future__ import annotations

from lattice_bpd.verify.batched import Verification, accept_lengths, greedy_tokens, verify_drafts
from lattice_bpd.verify.cache import check_cache, keep_row

__all__ = [
    "Verification",
    "accept_lengths",
    "check_cache",
    "greedy_tokens",
    "keep_row",
    "verify_drafts",
]
