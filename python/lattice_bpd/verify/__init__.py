"""Verification: one call of the target determines the accepted tokens of each draft.

Lossy acceptance rules are in `lattice_bpd.verify.acceptance`.
"""

from __future__ import annotations

from lattice_bpd.verify.acceptance.rules import Acceptance, Exact, parse_acceptance
from lattice_bpd.verify.acceptance.sampling import Rejection, Sampled
from lattice_bpd.verify.cpu_kernels import use_cpu_kernels
from lattice_bpd.verify.graphs import record_calls
from lattice_bpd.verify.greedy import greedy_tokens
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.target import CausalLMTarget
from lattice_bpd.verify.verification import verify_drafts, verify_trees

__all__ = [
    "Acceptance",
    "CausalLMTarget",
    "Exact",
    "PrefixTree",
    "Rejection",
    "Sampled",
    "greedy_tokens",
    "parse_acceptance",
    "record_calls",
    "use_cpu_kernels",
    "verify_drafts",
    "verify_trees",
]
