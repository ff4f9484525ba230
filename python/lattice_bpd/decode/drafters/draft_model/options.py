"""Checks of the options of a DraftModelDrafter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lattice_bpd.draft.config import MAX_NODES

if TYPE_CHECKING:
    from lattice_bpd.decode.drafters.draft_model.drafter import DraftModelDrafter

SHAPES = ("chain", "lattice", "tree", "beam", "sampled")
_WHERE = "DraftModelDrafter"
DEFAULT_LENGTH = 5


def check_options(drafter: DraftModelDrafter, draws: Sequence[int] | None) -> None:
    """Raise ValueError for options out of range or without effect; draws as they were given."""
    if drafter.shape not in SHAPES:
        raise ValueError(
            f"{_WHERE}: shape is {drafter.shape!r}; expected one of {', '.join(SHAPES)}"
        )
    vocab_size = drafter.reader.model.vocab_size
    if drafter.top_k > vocab_size:
        raise ValueError(f"{_WHERE}: top_k is {drafter.top_k}; expected 1..{vocab_size}")
    if drafter.lm is not None and drafter.shape not in ("lattice", "tree"):
        raise ValueError(
            f"{_WHERE}: shape {drafter.shape!r} does not use an LM; leave lm out, or use 'lattice' "
            "or 'tree'"
        )
    _check_draws(drafter, draws)
    refusal = drafter.reader.model.refuses_tree() if drafter.grows else None
    if refusal is not None:
        raise ValueError(
            f"{_WHERE}: shape {drafter.shape!r} reads trees with the draft model: {refusal}; use "
            "shape 'tree'"
        )


def _check_draws(drafter: DraftModelDrafter, draws: Sequence[int] | None) -> None:
    if draws is not None and (drafter.shape != "sampled" or min(draws, default=0) < 1):
        raise ValueError(
            f"{_WHERE}: draws is {list(draws)} with shape {drafter.shape!r}; expected counts of 1 "
            "or more with shape 'sampled'"
        )
    if math.prod(drafter.draws) > MAX_NODES:
        raise ValueError(
            f"{_WHERE}: draws {drafter.draws} make {math.prod(drafter.draws)} paths; expected "
            f"{MAX_NODES} at most"
        )
