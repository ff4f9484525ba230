"""Extends a draft tree beyond the last head with likely tokens of the n-gram LM.

The probability of a node after the last slot is that of its prefix times the LM's. Of all nodes,
those of the lattice included, the N most probable are kept.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.drafters.growing_tree import GrowingTree
from lattice_bpd.decode.drafters.proposals import propose_checked
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.token_ids import concatenate, to_token_ids
from lattice_bpd.verify.prefix_tree import PrefixTree

_MOST_HISTORIES = 1 << 16  # remembered


class LikelyTokens:
    """The k most likely tokens after a history, by an n-gram LM.

    The whole vocabulary is scored for each new history (3 ms for 32,000 tokens), and the result
    cached.

    Args:
        lm: the LM.
        top_k: k, 1..V.
    """

    def __init__(self, lm: NGramLM, top_k: int) -> None:
        self.lm, self.top_k = lm, top_k
        self._reach = max(1, lm.order - 1)  # <s> before a full history changes nothing
        self._all: Any = np.arange(lm.vocab_size, dtype=np.int32)[None]
        self._known: dict[tuple[int, ...], list[tuple[int, float]]] = {}

    def after(self, text: Sequence[int]) -> list[tuple[int, float]]:
        """Tokens with their ln P, best first, ties by ascending id; text is (T,) ints, whole."""
        history = tuple(text[-self._reach :])
        likely = self._known.get(history)
        if likely is None:
            if len(self._known) >= _MOST_HISTORIES:
                self._known.clear()
            ids = to_token_ids(list(history), "ContinuationDrafter", self.lm.vocab_size)
            log_probs = self.lm._core.score_candidates(*concatenate([ids]), self._all, True)[0]
            best = np.argsort(-log_probs, kind="stable")[: self.top_k]
            likely = [(int(token), float(log_probs[token])) for token in best]
            self._known[history] = likely
        return likely


class ContinuationDrafter(Drafter):
    """The max_nodes most probable prefixes of another drafter's tree and its LM continuations.

    Args:
        drafter: proposes trees with probabilities, such as TreeDrafter; None: the LM alone drafts.
        lm: n-gram LM over the target's token ids.
        num_slots: most slots to add after the last one, 1 or more.
        top_k: continuations of a node, at most V.
        max_nodes: N.

    Raises:
        ValueError: sizes out of range; in `propose`, an LM of another vocabulary.
        TypeError: in `propose`, a drafter whose trees have no probabilities.
    """

    def __init__(
        self,
        drafter: Drafter | None,
        lm: NGramLM,
        *,
        num_slots: int = 4,
        top_k: int = 8,
        max_nodes: int = 36,
    ) -> None:
        for name, value, most in (
            ("num_slots", num_slots, num_slots), ("top_k", top_k, lm.vocab_size),
            ("max_nodes", max_nodes, max_nodes),
        ):  # fmt: skip
            if not 1 <= value <= most:
                upper = f"..{most}" if name == "top_k" else " or more"
                raise ValueError(f"ContinuationDrafter: {name} is {value}; expected 1{upper}")
        self.drafter, self.lm, self.num_slots, self.max_nodes = drafter, lm, num_slots, max_nodes
        self._likely = LikelyTokens(lm, top_k)

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree]:
        """A tree of at most N draft tokens for each state."""
        vocab_size = states[0].model.vocab_size
        if self.lm.vocab_size != vocab_size:
            raise ValueError(
                f"ContinuationDrafter: the LM has a vocabulary of {self.lm.vocab_size}, the target "
                f"one of {vocab_size}; expected the same; train the LM on token ids of the "
                f"target's tokenizer with vocab_size={vocab_size}"
            )
        proposals: list[PrefixTree | None] = [None] * len(states)
        if self.drafter is not None:
            proposals = propose_checked(self.drafter, states)
        trees = []
        for state, proposal in zip(states, proposals, strict=True):
            tree = self._read(proposal)
            with state.stats.stage("rescore"):
                self._extend(tree, state, self._last_slot(state))
                tree.keep_best(self.max_nodes)
            trees.append(tree.to_tree(state.tokens[-1]))
        return trees

    def _last_slot(self, state: DecodeState) -> int:
        """The depth of the nodes that the LM extends; -1 without another drafter."""
        if self.drafter is None:
            return -1
        slots = getattr(self.drafter, "num_slots", None)
        return min(state.num_slots if slots is None else int(slots), state.max_draft_length) - 1

    def _read(self, proposal: PrefixTree | None) -> GrowingTree:
        if proposal is None or len(proposal) == 1:
            return GrowingTree()
        if proposal.log_probs is None or proposal.sampled_from is not None:
            raise TypeError(
                f"ContinuationDrafter: {type(self.drafter).__name__} proposed a tree without "
                "probabilities or a sampled one; expected nodes with probabilities; use TreeDrafter"
            )
        return GrowingTree.from_tree(proposal)

    def _extend(self, tree: GrowingTree, state: DecodeState, last: int) -> None:
        """Expand the most probable node repeatedly, while that can change the best N."""
        deepest = min(last + self.num_slots, state.max_draft_length - 1)
        best = heapq.nlargest(self.max_nodes, tree.log_probs)[::-1]  # ascending: a heap
        waiting = [
            (-lp, node) for node, lp in enumerate(tree.log_probs) if tree.depths[node] == last
        ]
        if last < 0:
            waiting = [(0.0, -1)]
        heapq.heapify(waiting)
        context = state.tokens[-self.lm.order :]
        while waiting:
            cost, node = heapq.heappop(waiting)
            depth = last if node < 0 else tree.depths[node]
            full = len(best) >= self.max_nodes
            if depth >= deepest or (full and -cost <= best[0]):
                continue
            for token, log_prob in self._likely.after([*context, *tree.path(node)]):
                total = log_prob - cost
                if len(best) >= self.max_nodes and total <= best[0]:
                    break
                if (node, token) in tree.children:  # the tree has it already
                    continue
                tree.add(token, node, total)
                heapq.heappush(waiting, (-total, len(tree.token_ids) - 1))
                if len(best) >= self.max_nodes:
                    heapq.heapreplace(best, total)
                else:
                    heapq.heappush(best, total)
