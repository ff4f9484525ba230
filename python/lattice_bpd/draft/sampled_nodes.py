"""Drafts that were drawn at random, with the distributions that they were drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

Drawn = tuple[Any, Any] | None


@dataclass(frozen=True)
class DrawnNodes:
    """The tree of one sequence; siblings were drawn without replacement, in their order.

    An acceptance rule that samples needs the distributions to keep the target's own; for any other
    rule this is a tree like others.

    Attributes:
        token_ids: (N,) int32, a node's token.
        parents: (N,) int32, the node before each, -1 for first tokens; parents stand before their
            children.
        drawn_from: N + 1 entries, that of the exact token first and then one for each node: what
            its children were drawn from, token ids (k,) int and probabilities (k,) float64 that
            sum to 1; None for a node without children.
    """

    token_ids: npt.NDArray[Any]
    parents: npt.NDArray[Any]
    drawn_from: list[Drawn]

    def __post_init__(self) -> None:
        """Raise ValueError unless the lengths agree."""
        count = len(self.token_ids)
        if len(self.parents) != count or len(self.drawn_from) != count + 1:
            raise ValueError(
                f"DrawnNodes: {count} token ids, {len(self.parents)} parents and "
                f"{len(self.drawn_from)} distributions; expected as many parents as token ids, and "
                "one distribution more (that of the exact token)"
            )
