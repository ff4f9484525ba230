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


@dataclass
class PrefixTree:
    """Draft tokens below the exact token; parents stand before their children.

    Attributes:
        token_ids: (n+1) ints, the exact token y_{t+1} first.
        parents: (n+1) ints, the node before each; -1 for node 0.
        depths: (n+1) ints, 0 for node 0: draft token j of a draft has depth j.
    """

    token_ids: list[int]
    parents: list[int]
    depths: list[int]
    _children: dict[tuple[int, int], int] = field(default_factory=dict, repr=False)

    @classmethod
    def from_drafts(cls, exact_token: int, drafts: Sequence[Sequence[int]]) -> PrefixTree:
        """The prefix tree of a list of drafts.

        Args:
            exact_token: y_{t+1}.
            drafts: p sequences of token ids, best first; a negative id (padding) ends one. The
                best draft becomes nodes 1, 2, ..: accepting it needs no copy of the cache.
        """
        tree = cls([exact_token], [-1], [0])
        children = tree._children
        for draft in drafts:
            node = 0
            for token in draft:
                if token < 0:
                    break
                child = children.get((node, token))
                node = tree._add(node, token) if child is None else child
        return tree

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
        tree = cls([exact_token], [-1], [0])
        places = [0]  # of each node of the source; -1 where it is left out. Entry 0 is the root
        if len(token_ids) != len(parents):
            raise ValueError(
                f"PrefixTree: {len(token_ids)} token ids and {len(parents)} parents; expected as "
                "many of each"
            )
        for number, (token, parent) in enumerate(zip(token_ids, parents, strict=True)):
            if not -1 <= parent < number:
                raise ValueError(
                    f"PrefixTree: node {number} has parent {parent}; expected -1..{number - 1}; "
                    "list parents before their children"
                )
            above = places[parent + 1]
            if above < 0 or tree.depths[above] >= max_depth:
                places.append(-1)
                continue
            child = tree._children.get((above, token))
            places.append(tree._add(above, token) if child is None else child)
        return tree

    def _add(self, parent: int, token: int) -> int:
        node = len(self.token_ids)
        self.token_ids.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self._children[parent, token] = node
        return node

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

    def follow(self, next_token: Callable[[int], int | None]) -> tuple[list[int], list[int]]:
        """Walk down as long as the target agrees.

        Args:
            next_token: the target's token behind a node; None ends the walk without a token.

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
        seen = [1]  # of each node, one bit for each node that it sees
        for node in range(1, len(self)):
            seen.append(seen[self.parents[node]] | 1 << node)
        seen += [1 << node for node in range(len(self), size)]
        width = (size + 7) // 8
        rows = b"".join([bits.to_bytes(width, "little") for bits in seen])
        packed: Any = np.frombuffer(rows, np.uint8).reshape(size, width)
        return np.unpackbits(packed, axis=1, count=size, bitorder="little").view(np.bool_)
