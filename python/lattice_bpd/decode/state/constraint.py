"""What decoding calls where a constraint is given; lattice-bpd-constraints implements it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lattice_bpd.verify.greedy import TokenSelector
from lattice_bpd.verify.prefix_tree import PrefixTree


class ConstrainedText(TokenSelector, Protocol):
    """Selects the tokens of one text among those that its constraint allows, and cuts its drafts.

    Attributes:
        stop_token_ids: tokens that end the text, those of the constraint too.
        max_added: most nodes that `constrain` adds to a tree.
    """

    stop_token_ids: frozenset[int]
    max_added: int

    @property
    def is_complete(self) -> bool:
        """Whether no token may follow, not even a stop token."""
        ...

    def find_candidates(
        self, logits: npt.NDArray[np.float32], top_k: int, where: str
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], bool]:
        """Token ids and scores (H, k) of (H, V) logits, and whether a slot depends on the path."""
        ...

    def cut(self, tree: PrefixTree, max_nodes: int) -> PrefixTree:
        """The first nodes of a tree that are allowed, at most `max_nodes` below the exact token."""
        ...

    def constrain(self, tree: PrefixTree, max_depth: int) -> PrefixTree:
        """The nodes of a tree that are allowed, and the tokens that must follow them."""
        ...

    def start_tree(self) -> Callable[[int, int, int, list[int]], list[bool]]:
        """Called with a node, its parent, its token and some tokens: which of them may follow."""
        ...


def start_trees(texts: Sequence[ConstrainedText | None]) -> Callable[..., list[bool]]:
    """The `start_tree` of several texts, called with the number of a text and its arguments."""
    trees = [text.start_tree() for text in texts if text is not None]
    return lambda number, *node: trees[number](*node)
