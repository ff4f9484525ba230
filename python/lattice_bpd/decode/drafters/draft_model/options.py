"""Checks of the options of a DraftModelDrafter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lattice_bpd.draft.config import MAX_NODES

if TYPE_CHECKING:
    from lattice_bpd.decode.drafters.draft_model.drafter import DraftModelDrafter

SHAPES = ("chain", "beam", "sampled", "sampled_tree")
_WHERE = "DraftModelDrafter"
DEFAULT_LENGTH = 5


def check_options(drafter: DraftModelDrafter, draws: Sequence[int] | None) -> None:
    """Raise ValueError for options out of range or without effect.

    Args:
        drafter: with its config, shape and reader.
        draws: as they were given.
    """
    shape = drafter.shape
    if shape not in (None, *SHAPES):
        raise ValueError(f"{_WHERE}: shape is {shape!r}; expected one of {', '.join(SHAPES)}")
    vocab_size, top_k = drafter.reader.model.vocab_size, drafter.config.top_k
    has_nodes = shape is None and drafter.config.max_nodes != "auto"
    if (shape == "beam" or has_nodes) and top_k > vocab_size:
        raise ValueError(f"{_WHERE}: top_k is {top_k}; expected 1..{vocab_size}")
    _check_draws(shape, draws)
    branches = shape in ("beam", "sampled_tree") or max(draws or (1,)) > 1
    refusal = drafter.reader.model.refuses_tree() if branches else None
    if refusal is not None:
        raise ValueError(
            f"{_WHERE}: shape {shape!r} reads trees with the draft model: {refusal}; leave shape "
            "and draws out"
        )


def _check_draws(shape: str | None, draws: Sequence[int] | None) -> None:
    if draws is None:
        return
    if shape != "sampled" or min(draws, default=0) < 1:
        raise ValueError(
            f"{_WHERE}: draws is {list(draws)} with shape {shape!r}; expected counts of 1 or more "
            "with shape 'sampled'"
        )
    if math.prod(draws) > MAX_NODES:
        raise ValueError(
            f"{_WHERE}: draws {list(draws)} make {math.prod(draws)} paths; expected {MAX_NODES} at "
            "most"
        )
