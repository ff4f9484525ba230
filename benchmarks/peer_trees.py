"""Draft trees of other methods over independent slots, and a suffix automaton.

Rebuilt for bench_peers.py from the papers; slots are heads, or positions of a block drafter.

    medusa_tree      one tree for all steps, by the accuracy of each head's guesses (Medusa, Cai et
                     al. 2024, arXiv 2401.10774)
    eagle2_tree      a beam of prefixes for each level, then the best nodes of all levels (EAGLE-2,
                     Li et al. 2024, arXiv 2406.16858)
    best_first_tree  the most probable prefixes by products of marginals, with a heap (DDTree, arXiv
                     2604.12989, algorithm 1)
    SuffixAutomaton  the longest suffix of a text that occurred in it earlier (SAM decoding, Hu et
                     al. 2024, arXiv 2411.10666)
"""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class SlotTree(NamedTuple):
    """A tree whose n nodes are guesses of slots; parents come before their children.

    Attributes:
        parents: (n,) int64, -1 for first tokens.
        slots: (n,) int64, the depth of each node, 0 for first tokens.
        ranks: (n,) int64, which guess of its slot a node is, 0 for the best.
        scores: (n,) float64, natural log of the product of probabilities from the root on.
    """

    parents: IntArray
    slots: IntArray
    ranks: IntArray
    scores: FloatArray


def best_first_tree(log_probs: FloatArray, max_nodes: int) -> SlotTree:
    """The max_nodes prefixes of greatest probability where slots are independent.

    No prefix is more probable than its parent, so popping the best of all open prefixes gives them
    in order of falling probability: O(N log N) for N nodes.

    Args:
        log_probs: (H, k) natural logs, each row in falling order; -inf is never drafted.
        max_nodes: N.
    """
    rows = log_probs.tolist()
    nodes: list[tuple[int, int, int, float]] = []
    scores = [0.0]  # of the root, then of the nodes
    heap = [(-rows[0][0], 0, -1, 0, 0)]  # negated score, order of insertion, parent, slot, rank
    inserted = 1
    while heap and len(nodes) < max_nodes:
        negated, _, parent, slot, rank = heapq.heappop(heap)
        if negated == math.inf:
            break
        node = len(nodes)
        nodes.append((parent, slot, rank, -negated))
        scores.append(-negated)
        if rank + 1 < len(rows[slot]):
            sibling = scores[parent + 1] + rows[slot][rank + 1]
            heapq.heappush(heap, (-sibling, inserted, parent, slot, rank + 1))
            inserted += 1
        if slot + 1 < len(rows):
            heapq.heappush(heap, (negated - rows[slot + 1][0], inserted, node, slot + 1, 0))
            inserted += 1
    return _to_slot_tree(nodes)


def medusa_tree(accuracies: FloatArray, max_nodes: int) -> SlotTree:
    """The fixed tree that is expected to accept most, by accuracies measured on training text.

    Nodes are added one by one, each time the one of greatest accuracy among those whose parents are
    in the tree. The accuracy of a node is the product of those of the guesses on its path, as if
    heads were right independently of each other.

    Args:
        accuracies: (H, k), how often guess i of head j is right; a guess of accuracy 0 is left out.
        max_nodes: N.
    """
    order = np.argsort(-accuracies, axis=1, kind="stable")
    with np.errstate(divide="ignore"):
        log_probs = np.log(np.take_along_axis(accuracies, order, axis=1))
    tree = best_first_tree(log_probs, max_nodes)
    return tree._replace(ranks=order[tree.slots, tree.ranks])


def eagle2_tree(log_probs: FloatArray, max_nodes: int, beam: int = 10) -> SlotTree:
    """The tree of EAGLE-2: expansion level by level, then reranking of all nodes.

    The `beam` nodes of greatest probability of a level get `beam` children each. Of the nodes of
    all levels, the max_nodes most probable ones are kept; of equal ones the less deep.

    EAGLE-2 reads each level with its autoregressive drafter, so the children of different nodes
    differ; slots are independent here, so they are the same.

    Args:
        log_probs: (H, k) natural logs, each row in falling order; -inf is never drafted.
        max_nodes: m, nodes kept.
        beam: k of the paper, nodes of a level that are expanded and children of each.
    """
    width = min(beam, log_probs.shape[1])
    best = log_probs[:, :width]
    scores, parents, ranks = [best[0]], [np.full(width, -1)], [np.arange(width)]
    first, count = 0, width  # nodes of the level
    for slot in range(1, len(best)):
        expanded = np.argsort(-scores[-1], kind="stable")[:beam]
        scores.append((scores[-1][expanded, None] + best[slot]).ravel())
        parents.append(np.repeat(first + expanded, width))
        ranks.append(np.tile(np.arange(width), len(expanded)))
        first, count = first + count, len(expanded) * width
    slots = np.repeat(np.arange(len(best)), [len(level) for level in scores])
    all_scores, all_parents = np.concatenate(scores), np.concatenate(parents)
    kept = np.argsort(-all_scores, kind="stable")[:max_nodes]
    kept = np.sort(kept[np.isfinite(all_scores[kept])])  # by level: parents before children
    numbers = np.full(len(all_scores) + 1, -1)  # the last one is that of parent -1
    numbers[kept] = np.arange(len(kept))
    return SlotTree(
        numbers[all_parents[kept]], slots[kept], np.concatenate(ranks)[kept], all_scores[kept]
    )


def _to_slot_tree(nodes: list[tuple[int, int, int, float]]) -> SlotTree:
    columns = list(zip(*nodes, strict=True)) or [(), (), (), ()]
    parents, slots, ranks = (np.array(column, np.int64) for column in columns[:3])
    return SlotTree(parents, slots, ranks, np.array(columns[3], np.float64))


class SuffixAutomaton:
    """All substrings of a growing text, to find the longest suffix that occurred earlier.

    Appending a token takes constant time on average (Blumer et al. 1985). The suffix link of the
    state of the whole text is the longest suffix with another occurrence, of any length.

    Attributes:
        text: the tokens so far.
    """

    def __init__(self) -> None:
        self.text: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link, self._length, self._first_end = [-1], [0], [0]
        self._last = 0

    def append(self, token: int) -> None:
        """Add a token to the text."""
        self.text.append(token)
        length = len(self.text)
        new, state = self._add({}, -1, length, length), self._last
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        self._link[new] = 0 if state < 0 else self._target(state, token)
        self._last = new

    def match(self) -> tuple[int, int]:
        """Where the longest suffix of the text that occurred earlier ended first, and its length.

        Returns:
            (tokens up to its end, tokens of it); (0, 0) if the last token is new.
        """
        state = self._link[self._last]
        return (self._first_end[state], self._length[state]) if state > 0 else (0, 0)

    def continuation(self, count: int) -> list[int]:
        """At most `count` tokens that followed the match; none without a match."""
        end, length = self.match()
        return self.text[end : end + count] if length > 0 else []

    def _target(self, state: int, token: int) -> int:
        """The state of a suffix's extension by a token, split off where longer ones share it."""
        found = self._next[state][token]
        length = self._length[state] + 1
        if self._length[found] == length:
            return found
        split = self._add(
            dict(self._next[found]), self._link[found], length, self._first_end[found]
        )
        self._link[found] = split
        while state >= 0 and self._next[state].get(token) == found:
            self._next[state][token] = split
            state = self._link[state]
        return split

    def _add(self, arcs: dict[int, int], link: int, length: int, first_end: int) -> int:
        self._next.append(arcs)
        self._link.append(link)
        self._length.append(length)
        self._first_end.append(first_end)
        return len(self._next) - 1
