"""Acceptance rules: which draft tokens are kept."""

from __future__ import annotations

from lattice_bpd.verify.acceptance.rule import Acceptance, Exact

__all__ = ["Acceptance", "Exact"]
