"""Acceptance rules: which draft tokens are accepted."""

from __future__ import annotations

from lattice_bpd.verify.acceptance.rules import (
    Acceptance,
    Exact,
    RelaxedAcceptance,
    SpecDecPlusPlus,
    TopKMatch,
    Typical,
    parse_acceptance,
)
from lattice_bpd.verify.acceptance.sampling import Rejection, Sampled

__all__ = [
    "Acceptance",
    "Exact",
    "Rejection",
    "RelaxedAcceptance",
    "Sampled",
    "SpecDecPlusPlus",
    "TopKMatch",
    "Typical",
    "parse_acceptance",
]
