"""The drafts of one sequence as a tree: every shared prefix once, below the exact token.

    drafts  5 7 9, 5 7 2, 1     exact token 3       3 (node 0)
                                                    |- 5 (1) - 7 (2) - 9 (3)
                                                    |              `-- 2 (4)
                                                    `- 1 (5)

A p-best list and a tree become the same thing here, so that verification knows one form only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core


@dataclass
class PrefixTree:
    """Draft tokens below the exact token; parents stand before their children.

    Attributes:
        token_ids: (n+1) ints, the exact token y_{t+1} first.
        parents: (n+1) ints, the node before each; -1 for node 0.
        depths: (n+1) ints, 0 for node 0: draft token j of a draft has depth j.
        drawn_from: for a node the distribution that its children were drawn from, see
            `lattice_bpd.verify.Offer`; None where nothing was drawn.
    """

    token_ids: list[int]
    parents: list[int]
    depths: list[int]
    _children: dict[tuple[int, int], int] = field(default_factory=dict, repr=False)
    drawn_from: Callable[[int], tuple[Any, Any] | None] | None = field(default=None, repr=False)

    @classmethod
    def from_drafts(cls, exact_token: int, drafts: Sequence[Sequence[int]]) -> PrefixTree:
        """The prefix tree of a list of drafts.

        Args:
            exact_token: y_{t+1}.
            drafts: p sequences of token ids, best first; a negative id (padding) ends one. The
                best draft becomes nodes 1, 2, ..: accepting it needs no copy of the cache.
        """
        token_ids, parents, depths = [exact_token], [-1], [0]
        children: dict[tuple[int, int], int] = {}
        for draft in drafts:
            node = 0
            for depth, token in enumerate(draft, 1):
                if token < 0:
                    break
                edge, new = (node, token), len(token_ids)
                node = children.setdefault(edge, new)
                if node == new:
                    token_ids.append(token)
                    parents.append(edge[0])
                    depths.append(depth)
        return cls(token_ids, parents, depths, children)

    @classmethod
    def from_nodes(
        cls, exact_token: int, token_ids: Sequence[int], parents: Sequence[int], max_depth: int
    ) -> PrefixTree:
        """The tree of a row of `DraftTree`.

        Args:
            exact_token: y_{t+1}.
            token_ids: n ints, without padding.
            parents: n ints, -1 for the first tokens.
            max_depth: longest path to keep, in tokens; deeper nodes are left out.

        Raises:
            ValueError: a parent does not stand before its child, or the lengths differ.
        """
        if len(token_ids) != len(parents):
            raise ValueError(
                f"PrefixTree: {len(token_ids)} token ids and {len(parents)} parents; expected as "
                "many of each"
            )
        depths = [0]  # of node 0, and of node i of the source in place i + 1
        for number, parent in enumerate(parents):
            if not -1 <= parent < number:
                raise ValueError(
                    f"PrefixTree: node {number} has parent {parent}; expected -1..{number - 1}; "
                    "list parents before their children"
                )
            depths.append(depths[parent + 1] + 1)
        if max(depths) <= max_depth:
            above = [parent + 1 for parent in parents]
            edges = zip(above, token_ids, strict=True)
            children = dict(zip(edges, range(1, len(depths)), strict=True))
            return cls([exact_token, *token_ids], [-1, *above], depths, children)
        kept = [node for node in range(len(token_ids)) if depths[node + 1] <= max_depth]
        places = {-1: -1, **{node: place for place, node in enumerate(kept)}}
        return cls.from_nodes(
            exact_token,
            [token_ids[node] for node in kept],
            [places[parents[node]] for node in kept],
            max_depth,
        )

    def __len__(self) -> int:
        """Number of nodes, the exact token counted."""
        return len(self.token_ids)

    @property
    def max_depth(self) -> int:
        """Tokens of the longest draft."""
        return max(self.depths)

    def count_leaves(self) -> int:
        """Number of paths."""
        return len(self) - len(set(self.parents) - {-1})

    def list_paths(self) -> list[list[int]]:
        """The nodes from node 0 down to each leaf, leaves in order of their nodes."""
        inner = set(self.parents)
        paths = []
        for leaf in range(len(self)):
            if leaf in inner:
                continue
            path, node = [], leaf
            while node >= 0:
                path.append(node)
                node = self.parents[node]
            paths.append(path[::-1])
        return paths

    def children(self, node: int) -> list[int]:
        """The draft tokens behind a node, in the order in which they were proposed."""
        return [token for above, token in self._children if above == node]

    def follow(self, next_token: Callable[[int], int | None]) -> tuple[list[int], list[int]]:
        """Walk down as long as the target agrees.

        Args:
            next_token: what the target takes behind a node; None ends the walk without a token.

        Returns:
            The accepted nodes, node 0 first, and the target's tokens behind each of them: the
            accepted draft tokens and then the bonus token.
        """
        node, nodes = 0, [0]
        tokens: list[int] = []
        while True:
            token = next_token(node)
            if token is None:
                return nodes, tokens
            tokens.append(token)
            child = self._children.get((node, token))
            if child is None:
                return nodes, tokens
            node = child
            nodes.append(node)

    def attention_mask(self, size: int) -> npt.NDArray[np.bool_]:
        """Which nodes see which: node i sees itself and its ancestors.

        Args:
            size: rows and columns of the mask; those behind the nodes see themselves alone.

        Returns:
            (size, size) bool.
        """
        parents = np.array(self.parents, np.int32)
        return _core.ancestor_mask(parents, size).view(np.bool_)
