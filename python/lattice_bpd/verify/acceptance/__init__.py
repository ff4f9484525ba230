"""Acceptance rules: which draft tokens are accepted."""

from __future__ import annotations

from lattice_bpd.verify.acceptance.parse import parse_acceptance
from lattice_bpd.verify.acceptance.relaxed import RelaxedAcceptance, RelaxedSelector
from lattice_bpd.verify.acceptance.rule import Acceptance, Exact
from lattice_bpd.verify.acceptance.rules import (
    SpecDecPlusPlus,
    TopKMatch,
    Typical,
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
