"""Drafts of a small causal LM: chains, lattices and trees."""

from __future__ import annotations

from lattice_bpd.decode.drafters.draft_model.drafter import DraftModelDrafter

__all__ = ["DraftModelDrafter"]
