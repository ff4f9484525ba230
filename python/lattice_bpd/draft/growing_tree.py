"""Trees put together node by node, in the form that searches return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from lattice_bpd import _core
from lattice_bpd.draft.draft_tree import DraftTree
from lattice_bpd.draft.sampled_nodes import Drawn
from lattice_bpd.draft.sampled_tree import DrawnTree


@dataclass
class Growth:
    """A tree while it grows; no node is more probable than its parent.

    Attributes:
        token_ids: of the nodes, parents before children.
        parents: of the nodes, -1 for first tokens.
        depths: of the nodes, 0 for first tokens.
        log_probs: of the nodes, ln of the probability of the prefix that ends there.
        drawn_from: of the exact token and the nodes, what their children were drawn from.
        failed: whether logits were no numbers.
        children: the node of each parent and token.
    """

    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    drawn_from: list[Drawn] = field(default_factory=lambda: [None])
    failed: bool = False
    children: dict[tuple[int, int], int] = field(default_factory=dict)

    @classmethod
    def of_nodes(cls, *parts: list[Any]) -> Growth:
        """A tree that grows on, of token ids, parents, depths and log probabilities of N nodes."""
        token_ids, parents, depths, log_probs = parts
        edges = zip(parents, token_ids, strict=True)
        children = {edge: node for node, edge in enumerate(edges)}
        nothing: list[Drawn] = [None] * (len(token_ids) + 1)
        return cls(token_ids, parents, depths, log_probs, nothing, children=children)

    def add(self, token: int, parent: int, log_prob: float) -> None:
        """One more node."""
        self.children[parent, token] = len(self.token_ids)
        self.token_ids.append(token)
        self.parents.append(parent)
        self.depths.append(0 if parent < 0 else self.depths[parent] + 1)
        self.log_probs.append(log_prob)
        self.drawn_from.append(None)

    def merge(self, token: int, parent: int, log_prob: float) -> int:
        """The node of a token behind another node, new, or old and at least as probable as this."""
        node = self.children.get((parent, token))
        if node is None:
            node = len(self.token_ids)
            self.add(token, parent, log_prob)
        elif log_prob > self.log_probs[node]:
            self.log_probs[node] = log_prob
        return node

    def path(self, node: int) -> list[int]:
        """The tokens that end in a node; none for -1."""
        found = []
        while node >= 0:
            found.append(self.token_ids[node])
            node = self.parents[node]
        return found[::-1]

    def best(self, most: int) -> Nodes:
        """The `most` most probable nodes, by falling probability."""
        costs = [-log_prob for log_prob in self.log_probs]
        order = sorted(range(len(costs)), key=costs.__getitem__)[:most]
        places = {-1: -1, **{node: place for place, node in enumerate(order)}}
        return Nodes(
            [self.token_ids[node] for node in order],
            [places[self.parents[node]] for node in order],
            [self.log_probs[node] for node in order],
        )

    def keep_best(self, most: int) -> None:
        """Drop all but the `most` most probable nodes; the rest stands by falling probability."""
        nodes = self.best(most)
        self.token_ids, self.parents = list(nodes.token_ids), list(nodes.parents)
        self.log_probs = list(nodes.log_probs)
        self.depths = []
        for parent in self.parents:
            self.depths.append(0 if parent < 0 else self.depths[parent] + 1)
        self.drawn_from = [None] * (len(self.token_ids) + 1)
        edges = zip(self.parents, self.token_ids, strict=True)
        self.children = {edge: node for node, edge in enumerate(edges)}


class Nodes(NamedTuple):
    """The nodes of one tree, parents before children.

    Attributes:
        token_ids: N ints.
        parents: N ints, -1 for first tokens.
        log_probs: N floats, natural log of a node's probability.
    """

    token_ids: Sequence[int]
    parents: Sequence[int]
    log_probs: Sequence[float]


def is_ranked_tree(proposal: object) -> bool:
    """Whether a proposal is a tree whose nodes stand by probability, rather than draws."""
    return isinstance(proposal, DraftTree) or (
        isinstance(proposal, DrawnTree) and not proposal.is_drawn
    )


def build_draft_tree(rows: Sequence[Nodes]) -> DraftTree:
    """A DraftTree with a row for each of B trees, padded to the largest.

    Nodes should stand by falling probability, where the first n are to be the tree of n nodes.
    """
    size = max((len(row.token_ids) for row in rows), default=0)
    batch = len(rows)
    token_ids = np.full((batch, size), DraftTree.PAD_TOKEN, np.int32)
    parents = np.full((batch, size), -1, np.int32)
    depths = np.zeros((batch, size), np.int32)
    log_probs = np.full((batch, size), -np.inf, np.float32)
    mask = np.zeros((batch, size, size), np.bool_)
    leaves = []
    for number, row in enumerate(rows):
        count = len(row.token_ids)
        token_ids[number, :count], parents[number, :count] = row.token_ids, row.parents
        log_probs[number, :count] = row.log_probs
        paths: list[list[int]] = []
        for node, parent in enumerate(row.parents):
            paths.append([node] if parent < 0 else [*paths[parent], node])
            depths[number, node] = len(paths[-1]) - 1
        mask[number] = _core.ancestor_mask(parents[number, :count], size).view(np.bool_)
        inner = set(row.parents)
        leaves.append([path for node, path in enumerate(paths) if node not in inner])
    most = max((len(row) for row in leaves), default=0)
    longest = max((len(path) for row in leaves for path in row), default=0)
    leaf_paths: Any = np.full((batch, most, longest), -1, np.int32)
    for number, found in enumerate(leaves):
        for place, path in enumerate(found):
            leaf_paths[number, place, : len(path)] = path
    counts = np.array([len(row.token_ids) for row in rows], np.int32)
    return DraftTree(token_ids, parents, depths, log_probs, counts, mask, leaf_paths)
