"""The drafts of one sequence as a tree below the exact token; shared prefixes occur once.

    drafts  5 7 9, 5 7 2, 1     exact token 3       3 (node 0)
                                                    |- 5 (1) - 7 (2) - 9 (3)
                                                    |              `-- 2 (4)
                                                    `- 1 (5)

Lists of drafts and trees are both converted to this type, the only input of verification.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.arguments import check_int
from lattice_bpd.token_ids import integer_array

IntArray = npt.NDArray[np.int32] | npt.NDArray[np.int64]


class PrefixTree(_core.PrefixTree):
    """Draft tokens below the exact token; parents precede their children.

    The nodes are stored in the core, so that laying out a call and following the target take
    microseconds; the lists below are copies.

    Args:
        token_ids: (n+1) ints, the exact token y_{t+1} first.
        parents: (n+1) ints, the parent of each node; -1 for node 0. Further nodes with parent -1
            make a forest, which can be laid out but not verified; its first tokens have depth 0.

    Attributes:
        exact_token: y_{t+1}, the token of node 0.
        token_ids: (n+1) ints, the exact token first.
        parents: (n+1) ints, the parent of each node; -1 for node 0.
        depths: (n+1) ints, 0 for node 0: draft token j of a draft has depth j.
        max_depth: tokens of the longest draft.
        token_range: smallest and greatest token id.
        log_probs: (n,) float32, natural logs of the draft tokens' probabilities; None if unknown.
            The nodes of a search are sorted by descending probability, so that the first n nodes
            are the best tree of n nodes.
        sampled_from: function of a node that returns the distribution from which its children were
            sampled without replacement: token ids (k,) int and probabilities (k,) float64 that
            sum to 1, or None for a node without children. None if the tree was not sampled.

    Raises:
        ValueError: a parent does not precede its child, or the lengths differ.
    """

    sampled_from: Callable[[int], tuple[Any, Any] | None] | None = None

    def __init__(self, token_ids: Sequence[int], parents: Sequence[int]) -> None:
        super().__init__(_to_list(token_ids, "token_ids"), _to_list(parents, "parents"))

    @classmethod
    def of(cls, core: _core.PrefixTree) -> PrefixTree:
        """The same nodes, of a search of the core."""
        tree = cls.__new__(cls)
        _core.PrefixTree.__init__(tree, core)
        return tree

    @classmethod
    def from_drafts(
        cls, exact_token: int, drafts: Sequence[Sequence[int]] | IntArray
    ) -> PrefixTree:
        """The prefix tree of a list of drafts.

        Args:
            exact_token: y_{t+1}.
            drafts: p sequences of token ids, or (p, H) ints, best first; a negative id (padding)
                ends a draft. The best draft becomes nodes 1, 2, ..: accepting it copies no cache
                positions.

        Raises:
            TypeError: token ids that are no integers.
        """
        if not isinstance(drafts, np.ndarray):
            rows = [_to_list(row, "a draft") for row in drafts]
            longest = max(map(len, rows), default=0)
            drafts = np.array([row + [-1] * (longest - len(row)) for row in rows], np.int64)
            drafts = drafts.reshape(len(rows), longest)
        exact = check_int("PrefixTree: exact_token", exact_token, 0)
        return cls.of(_core.PrefixTree.of_drafts(exact, _integers(drafts, "drafts")))

    @classmethod
    def from_nodes(
        cls,
        exact_token: int,
        token_ids: Sequence[int] | IntArray,
        parents: Sequence[int] | IntArray,
        max_depth: int,
        log_probs: npt.NDArray[np.float32] | None = None,
        sampled_from: Sequence[tuple[Any, Any] | None] | None = None,
    ) -> PrefixTree:
        """The tree of a row of `DraftTree` or `SampledTree`.

        Args:
            exact_token: y_{t+1}.
            token_ids: (n,) ints, without padding.
            parents: (n,) ints, -1 for the first tokens.
            max_depth: longest path to keep, in tokens; deeper nodes are left out.
            log_probs: (n,) natural logs of the nodes' probabilities, if known.
            sampled_from: for the exact token and each node the distribution from which its children
                were sampled, see the class; None if nothing was sampled.

        Raises:
            TypeError: token ids or parents that are no integers.
            ValueError: a parent is not before its child, or the lengths differ.
        """
        if sampled_from is not None:
            if len(sampled_from) != len(token_ids) + 1:
                raise ValueError(
                    f"PrefixTree: {len(token_ids)} token ids and {len(sampled_from)} "
                    "distributions; expected one distribution more (that of the exact token)"
                )
            tree = cls.from_nodes(exact_token, token_ids, parents, len(token_ids), log_probs)
            tree.sampled_from = list(sampled_from).__getitem__
            return tree.cut(len(tree), max_depth) if tree.max_depth > max_depth else tree
        exact = check_int("PrefixTree: exact_token", exact_token, 0)
        ids, above = _integers(token_ids, "token_ids"), _integers(parents, "parents")
        if log_probs is not None:
            log_probs = np.ascontiguousarray(log_probs, np.float32)
        return cls.of(_core.PrefixTree.of_nodes(exact, ids, above, max_depth, log_probs))

    def __repr__(self) -> str:
        """The nodes."""
        return f"PrefixTree(token_ids={self.token_ids}, parents={self.parents})"

    def cut(self, num_drafted: int, max_depth: int) -> PrefixTree:
        """The tree of the first draft tokens.

        Args:
            num_drafted: draft tokens to keep, at most.
            max_depth: longest path to keep, in tokens; deeper nodes are left out.
        """
        tree = PrefixTree.of(self.first_nodes(num_drafted + 1, max_depth))
        sampled_from = self.sampled_from
        if sampled_from is not None and self.max_depth > max_depth:  # nodes are renumbered
            kept = [node for node, depth in enumerate(self.depths) if depth <= max_depth]
            tree.sampled_from = lambda node: sampled_from(kept[node])
        else:
            tree.sampled_from = sampled_from
        return tree

    def best_chain(self) -> PrefixTree:
        """The tree's best single draft, which continues with the most probable child of each node.

        Without probabilities, it continues with the child that was proposed first.
        """
        parents, token_ids = self.parents, self.token_ids
        log_probs = self.log_probs
        rank = [0.0] * len(parents) if log_probs is None else [0.0, *log_probs.tolist()]
        best: dict[int, int] = {}
        for node, parent in enumerate(parents):
            if parent >= 0 and (parent not in best or rank[node] > rank[best[parent]]):
                best[parent] = node
        nodes = [0]
        while nodes[-1] in best:
            nodes.append(best[nodes[-1]])
        chain = PrefixTree([token_ids[node] for node in nodes], list(range(-1, len(nodes) - 1)))
        sampled_from = self.sampled_from
        if sampled_from is not None:
            chain.sampled_from = lambda node: sampled_from(nodes[node])
        return chain

    def follow(self, next_token: Callable[[int], int | None]) -> tuple[list[int], list[int]]:
        """Follow the target's choices through the tree.

        Args:
            next_token: returns the target's token after a node; None ends the text.

        Returns:
            The accepted nodes, node 0 first, and the target's token after each of them: the
            accepted draft tokens, then the bonus token.
        """
        node, nodes = 0, [0]
        tokens: list[int] = []
        while True:
            token = next_token(node)
            if token is None:
                return nodes, tokens
            tokens.append(token)
            node = self.child(node, token)
            if node < 0:
                return nodes, tokens
            nodes.append(node)


def _to_list(values: Any, name: str) -> list[int]:
    """A list of ints; one that is so already is not copied."""
    if isinstance(values, list) and set(map(type, values)) <= {int}:
        return values
    return _integers(values, name).tolist()  # type: ignore[no-any-return]


def _integers(values: Any, name: str) -> Any:
    """An int64 array."""
    return integer_array(values, f"PrefixTree: {name}").astype(np.int64, copy=False)
