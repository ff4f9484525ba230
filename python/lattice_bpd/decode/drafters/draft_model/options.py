"""What a draft model is not asked for, refused by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lattice_bpd.decode.drafters.draft_model.drafter import DraftModelDrafter

SHAPES = ("chain", "lattice", "tree", "beam", "drawn")
_WHERE = "DraftModelDrafter"
_MOST_NODES = 4096  # of the search; see rescore_tree


def check_options(drafter: DraftModelDrafter, draws: Sequence[int] | None) -> None:
    """Raise ValueError for options out of range or without effect; draws as they were given."""
    if drafter.shape not in SHAPES:
        raise ValueError(
            f"{_WHERE}: shape is {drafter.shape!r}; expected one of {', '.join(SHAPES)}"
        )
    _check_sizes(drafter)
    if not 0.0 < drafter.temperature < math.inf or not math.isfinite(drafter.alpha):
        raise ValueError(
            f"{_WHERE}: temperature is {drafter.temperature}, alpha {drafter.alpha}; expected a "
            "temperature above 0 and finite numbers"
        )
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


def _check_sizes(drafter: DraftModelDrafter) -> None:
    most = {"top_k": drafter.reader.model.vocab_size, "max_nodes": _MOST_NODES}
    for name in ("num_slots", "top_k", "num_drafts", "max_nodes"):
        value = getattr(drafter, name)
        if value < 1 or value > most.get(name, value):
            upper = f"..{most[name]}" if name in most else " or more"
            raise ValueError(f"{_WHERE}: {name} is {value}; expected 1{upper}")


def _check_draws(drafter: DraftModelDrafter, draws: Sequence[int] | None) -> None:
    if draws is not None and (drafter.shape != "drawn" or min(draws, default=0) < 1):
        raise ValueError(
            f"{_WHERE}: draws is {list(draws)} with shape {drafter.shape!r}; expected counts of 1 "
            "or more with shape 'drawn'"
        )
    if math.prod(drafter.draws) > _MOST_NODES:
        raise ValueError(
            f"{_WHERE}: draws {drafter.draws} make {math.prod(drafter.draws)} paths; expected "
            f"{_MOST_NODES} at most"
        )
