"""Draft trees built node by node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lattice_bpd.verify.prefix_tree import PrefixTree

Distribution = tuple[Any, Any]  # token ids (k,) and probabilities (k,) that sum to 1


@dataclass
class GrowingTree:
    """A draft tree under construction; no node is more probable than its parent.

    Attributes:
        token_ids: of the nodes, parents before children.
        parents: of the nodes, -1 for first tokens.
        depths: of the nodes, 0 for first tokens.
        log_probs: of the nodes, ln of the probability of the prefix that ends there.
        sampled_from: of the exact token and the nodes, what their children were sampled from.
        failed: whether logits were NaN or infinite.
        children: the node of each parent and token.
    """

    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    sampled_from: list[Distribution | None] = field(default_factory=lambda: [None])
    failed: bool = False
    children: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, token: int, parent: int, log_prob: float) -> int:
        """Adds a node, and returns its number."""
        node = self.children[parent, token] = len(self.token_ids)
        self.token_ids.append(token)
        self.parents.append(parent)
        self.depths.append(0 if parent < 0 else self.depths[parent] + 1)
        self.log_probs.append(log_prob)
        self.sampled_from.append(None)
        return node

    def add_children(
        self,
        parent: int,
        token_ids: Sequence[int],
        log_probs: Sequence[float],
        sampled_from: Distribution | None,
    ) -> None:
        """Adds nodes below a parent that were sampled from a distribution.

        Args:
            parent: its number, -1 for the exact token.
            token_ids: of the nodes.
            log_probs: of the nodes, each after its parent.
            sampled_from: see the class.
        """
        above = 0.0 if parent < 0 else self.log_probs[parent]
        self.sampled_from[parent + 1] = sampled_from
        for token, log_prob in zip(token_ids, log_probs, strict=True):
            self.add(token, parent, above + log_prob)

    def merge(self, token: int, parent: int, log_prob: float) -> int:
        """The node of a token below a parent: a new one, or with the greater probability."""
        node = self.children.get((parent, token))
        if node is None:
            return self.add(token, parent, log_prob)
        self.log_probs[node] = max(self.log_probs[node], log_prob)
        return node

    def path(self, node: int) -> list[int]:
        """The tokens from the first one down to a node; none for -1."""
        tokens = []
        while node >= 0:
            tokens.append(self.token_ids[node])
            node = self.parents[node]
        return tokens[::-1]

    def keep_best(self, max_nodes: int) -> None:
        """Keeps the most probable nodes, sorted by descending probability."""
        order = sorted(range(len(self.log_probs)), key=lambda node: -self.log_probs[node])
        numbers = {-1: -1, **{node: number for number, node in enumerate(order[:max_nodes])}}
        kept = GrowingTree()
        for node in order[:max_nodes]:
            kept.add(self.token_ids[node], numbers[self.parents[node]], self.log_probs[node])
        vars(self).update(vars(kept), failed=self.failed)

    def to_tree(self, exact_token: int) -> PrefixTree:
        """The tree below an exact token, with log probabilities."""
        return PrefixTree.from_nodes(
            exact_token, self.token_ids, self.parents, len(self.token_ids),
            np.array(self.log_probs, np.float32),
        )  # fmt: skip

    def to_sampled_tree(self, exact_token: int) -> PrefixTree:
        """The tree below an exact token, with the distributions of its children, if any."""
        is_sampled = any(distribution is not None for distribution in self.sampled_from)
        return PrefixTree.from_nodes(
            exact_token, self.token_ids, self.parents, len(self.token_ids),
            sampled_from=self.sampled_from if is_sampled else None,
        )  # fmt: skip
