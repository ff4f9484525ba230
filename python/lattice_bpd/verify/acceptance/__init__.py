"""Acceptance rules: which draft tokens are kept."""

from __future__ import annotations

from lattice_bpd.verify.acceptance.rule import Acceptance, Exact
from lattice_bpd.verify.acceptance.sampling import (
    Rejection,
    RejectionChooser,
    Sampled,
    SampledChooser,
)
from lattice_bpd.verify.acceptance.warp import Warp

__all__ = [
    "Acceptance",
    "Exact",
    "Rejection",
    "RejectionChooser",
    "Sampled",
    "SampledChooser",
    "Warp",
]
