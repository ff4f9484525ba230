"""Raw n-gram counts over the lattice: a baseline in the manner of DART's trie of n-grams.

Instead of a smoothed LM, relative frequencies are taken as they are: of each candidate after the
longest history that it followed in a corpus, 0.4 times for each token that this history is shorter
("stupid backoff", Brants et al. 2007). The tree is grown best first by head scores + alpha * ln of
that; tokens that the corpus does not have are dropped.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.drafters.head_candidates import batch_head_logits
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.lattice.logits import select_top_k
from lattice_bpd.token_ids import to_token_ids
from lattice_bpd.verify.prefix_tree import PrefixTree

Float64Array = npt.NDArray[np.float64]
UInt64Array = npt.NDArray[np.uint64]


_LOG_BACKOFF = np.log(0.4)


@dataclass(frozen=True)
class _Level:
    """The different n-grams of one order: sorted keys, and counts summed up from the left."""

    keys: UInt64Array
    sums: npt.NDArray[np.int64]  # (len(keys) + 1,)


class CountTrie:
    """How often each n-gram of a corpus occurred.

    Args:
        sequences: token ids of each text, (T_i,) ints.
        vocab_size: V.
        order: length of the longest n-grams; `order` ids of V must fit into 64 bits.

    Raises:
        ValueError: no tokens, ids outside the vocabulary, or an order that does not fit.
    """

    def __init__(self, sequences: Iterable[Any], vocab_size: int, order: int = 4) -> None:
        self.vocab_size, self.order = vocab_size, order
        self._bits = max(1, (vocab_size - 1).bit_length())
        if not 1 <= order <= 64 // self._bits:
            raise ValueError(
                f"CountTrie: order is {order}; expected 1..{64 // self._bits}, what fits into 64 "
                f"bits with a vocabulary of {vocab_size}"
            )
        texts = [to_token_ids(ids, "CountTrie", vocab_size).astype(np.uint64) for ids in sequences]
        if not sum(map(len, texts)):
            raise ValueError("CountTrie: no tokens; expected one or more; give a text to count")
        self._levels = [self._count(texts, size) for size in range(1, order + 1)]

    def _count(self, texts: Sequence[UInt64Array], size: int) -> _Level:
        shift = np.uint64(self._bits)
        found = []
        for ids in texts:
            keys = ids[: max(0, len(ids) - size + 1)].copy()
            for place in range(1, size):
                keys = (keys << shift) | ids[place : len(ids) - size + 1 + place]
            found.append(keys)
        keys, counts = np.unique(np.concatenate(found), return_counts=True)
        return _Level(keys, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))

    def log_frequencies(
        self, history: Sequence[int], candidates: npt.NDArray[np.int32]
    ) -> Float64Array:
        """How often each candidate follows, relative to all that follow.

        Args:
            history: tokens before; the last order-1 are used.
            candidates: (k,) int32.

        Returns:
            (k,) ln frequency, -inf for tokens that the corpus does not have.
        """
        ids = candidates.astype(np.uint64)
        longest = min(self.order - 1, len(history))
        found: Float64Array = np.full(len(ids), -np.inf)
        for size in range(longest + 1):
            level, key = self._levels[size], 0
            for token in history[len(history) - size :]:
                key = (key << self._bits) | token
            if not len(level.keys):
                break
            wanted = np.uint64(key << self._bits) | ids
            held = np.minimum(np.searchsorted(level.keys, wanted), len(level.keys) - 1)
            known = level.keys[held] == wanted
            if not known.any():
                break  # what did not follow a history did not follow a longer one
            counts = (level.sums[held + 1] - level.sums[held])[known]
            back = (longest - size) * _LOG_BACKOFF
            found[known] = np.log(counts) - np.log(self._total(level, key)) + back
        return found

    def _total(self, level: _Level, key: int) -> int:
        """Occurrences of a history that a token follows."""
        low = np.searchsorted(level.keys, np.uint64(key << self._bits))
        last = np.uint64((key << self._bits) | ((1 << self._bits) - 1))
        high = np.searchsorted(level.keys, last, side="right")
        return int(level.sums[high] - level.sums[low])


@dataclass(frozen=True)
class CountTree:
    """One tree: nodes in the order in which they were taken, parents before children.

    Attributes:
        token_ids: N ints.
        parents: N ints, -1 below the exact token.
        depths: N ints, 0..H-1.
        scores: N floats, what the nodes were ranked by.
    """

    token_ids: list[int]
    parents: list[int]
    depths: list[int]
    scores: list[float]

    def leaf_nodes(self) -> list[list[int]]:
        """The nodes from a first token down to each leaf."""
        inner = set(self.parents)
        return [self._up(node) for node in range(len(self.parents)) if node not in inner]

    def _up(self, node: int) -> list[int]:
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]


def grow_tree(
    trie: CountTrie,
    token_ids: npt.NDArray[np.int32],
    scores: npt.NDArray[np.float32],
    context: Sequence[int],
    *,
    max_nodes: int,
    alpha: float,
) -> CountTree:
    """The best-first tree of one lattice.

    Args:
        trie: raw counts.
        token_ids: (S, k) int32.
        scores: (S, k) float32 head logits, made log probabilities among the k of each slot.
        context: ints, the exact token last.
        max_nodes: N, 1 or more.
        alpha: weight of ln frequency.
    """
    shifted = scores.astype(np.float64) - scores.max(axis=1, keepdims=True)
    heads = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    tree = CountTree([], [], [], [])
    context = [int(token) for token in context]
    waiting: list[tuple[float, int, int, int]] = []  # cost, tie, parent, token

    def open_children(parent: int, cost: float, path: list[int]) -> None:
        depth = len(path)
        if depth == len(token_ids):
            return
        found = trie.log_frequencies([*context, *path], token_ids[depth])
        values = heads[depth] + (alpha * found if alpha else np.where(found > -np.inf, 0.0, found))
        for place in np.flatnonzero(found > -np.inf):
            token = int(token_ids[depth, place])
            heapq.heappush(waiting, (cost - float(values[place]), token, parent, depth))

    open_children(-1, 0.0, [])
    while waiting and len(tree.token_ids) < max_nodes:
        cost, token, parent, depth = heapq.heappop(waiting)
        node = len(tree.token_ids)
        tree.token_ids.append(token)
        tree.parents.append(parent)
        tree.depths.append(depth)
        tree.scores.append(-cost)
        path = [tree.token_ids[place] for place in tree._up(node)]
        open_children(node, cost, path)
    return tree


class CountTrieDrafter(Drafter):
    """Live decoding with raw counts.

    Args:
        trie: raw counts over the target's token ids.
        top_k: k, candidates of a slot.
        max_nodes: N.
        alpha: weight of ln frequency.
    """

    def __init__(
        self, trie: CountTrie | None, *, top_k: int = 16, max_nodes: int = 36, alpha: float = 0.5
    ) -> None:
        if trie is None:
            raise ValueError("CountTrieDrafter: no trie; expected a CountTrie")
        self.trie, self.top_k, self.max_nodes, self.alpha = trie, top_k, max_nodes, alpha

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree | None]:
        """A tree of N nodes for each state; None where no candidate is in the corpus.

        Raises:
            ValueError: counts of another vocabulary.
        """
        return [self._propose(state) for state in states]

    def _propose(self, state: DecodeState) -> PrefixTree | None:
        if self.trie.vocab_size != state.model.vocab_size:
            raise ValueError(
                f"CountTrieDrafter: counts of a vocabulary of {self.trie.vocab_size}, the target "
                f"has {state.model.vocab_size}; count text of the target's tokenizer"
            )
        candidates = select_top_k(
            batch_head_logits([state]), self.top_k, log_softmax=False, where="CountTrieDrafter"
        )
        tree = grow_tree(
            self.trie, candidates.token_ids[0], candidates.scores[0],
            state.tokens[-self.trie.order :], max_nodes=self.max_nodes, alpha=self.alpha,
        )  # fmt: skip
        if not tree.token_ids:
            return None
        return PrefixTree.from_nodes(
            state.tokens[-1], tree.token_ids, tree.parents, len(tree.token_ids),
            np.array(tree.scores, np.float32),
        )  # fmt: skip
