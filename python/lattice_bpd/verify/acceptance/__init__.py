"""Acceptance rules: which draft tokens are accepted."""

from __future__ import annotations

from lattice_bpd.verify.acceptance.rules import (
    Acceptance,
    Exact,
    RelaxedAcceptance,
    RelaxedSelector,
    SpecDecPlusPlus,
    TopKMatch,
    Typical,
    parse_acceptance,
)
from lattice_bpd.verify.acceptance.sampling import (
    Rejection,
    RejectionSelector,
    Sampled,
    SampledSelector,
)
from lattice_bpd.verify.acceptance.warp import Warp

__all__ = [
    "Acceptance",
    "Exact",
    "Rejection",
    "RejectionSelector",
    "RelaxedAcceptance",
    "RelaxedSelector",
    "Sampled",
    "SampledSelector",
    "SpecDecPlusPlus",
    "TopKMatch",
    "Typical",
    "Warp",
    "parse_acceptance",
]
