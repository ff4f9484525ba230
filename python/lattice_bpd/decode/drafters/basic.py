"""Drafters: what is proposed for verification. Everything else of decoding is the same for all.

NoDrafter        nothing                                        greedy decoding
BlockDrafter     the argmax of every head                       BPD (paper algorithm 1)
LatticeDrafter   the p best paths through the top-k lattice     n-gram and p-best BPD (7.2)
TreeDrafter      the most probable prefixes of all its paths    tree_drafter.py
OracleDrafter    the path that agrees longest with the target   an upper bound (6.3)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from lattice_bpd.decode.constraint.search import (
    find_candidates,
    rescore_intersections,
)
from lattice_bpd.decode.drafters.head_candidates import batch_head_logits, prepare_rescoring
from lattice_bpd.decode.drafters.ngram_caches import SequenceCaches
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.draft_tree import DraftTree
from lattice_bpd.draft.drafts import Drafts
from lattice_bpd.draft.rescore import rescore_lattice
from lattice_bpd.draft.sampled_nodes import DrawnNodes
from lattice_bpd.draft.sampled_tree import DrawnTree
from lattice_bpd.lattice.logits import Candidates
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.search import search_drafts

Proposal = Drafts | DraftTree | DrawnTree | DrawnNodes | PrefixTree | None


class Drafter(Protocol):
    """Anything that proposes drafts; write one to plug in your own.

    A drafter may have `propose_batch(states)` as well: then one call serves all sequences of a
    batch. It returns Drafts or a DraftTree with a row for each state, None, or a list with a
    proposal of batch size 1 for each state.

    And it may have `propose_prefix_trees(states)`, which is asked before all others, whatever the
    batch: a PrefixTree for each state whose exact token, vocabulary and room are not checked any
    more, or None where the others are to be asked.
    """

    def propose(self, state: DecodeState) -> Proposal:
        """Drafts for the tokens behind `state.tokens`.

        Args:
            state: where decoding stands; `state.num_slots` (for heads) and `state.room` (for
                drafts that need none) are at least 1. Do not change it.

        Returns:
            Drafts, a DraftTree or a DrawnTree of batch size 1, best first, of any number of slots
            (what is deeper than `state.room` is cut), DrawnNodes, or a PrefixTree below the exact
            token; None to draft nothing in this step.

        Raises:
            DraftError: it cannot draft in this step, which then decodes one token.
        """
        ...

    def observe(self, accepted: Sequence[int]) -> None:  # noqa: ARG002
        """Told after each call what was decoded: accepted draft tokens, then the exact token.

        The first time, the exact token behind the prompt.
        """
        return


class NoDrafter(Drafter):
    """Greedy decoding: every call of the target yields one token."""

    def propose(self, state: DecodeState) -> None:  # noqa: ARG002
        """Nothing."""
        return

    def propose_batch(self, states: Sequence[DecodeState]) -> None:  # noqa: ARG002
        """Nothing."""
        return


class BlockDrafter(Drafter):
    """One draft: the most likely token of each head (smallest id among equals)."""

    def propose(self, state: DecodeState) -> Drafts:
        """(1, 1, num_slots) token ids; the score is the sum of the heads' logits."""
        return self.propose_batch([state])

    def propose_batch(self, states: Sequence[DecodeState]) -> Drafts:
        """(B, 1, H) token ids."""
        logits = batch_head_logits(states)
        with states[0].stats.stage("top_k"):
            best, _ = find_candidates(states, logits, 1, "BlockDrafter")
            ones = np.ones(len(states), np.int32)
            return Drafts(best.token_ids[:, None, :, 0], best.scores.sum(axis=1), ones)

    def propose_prefix_trees(self, states: Sequence[DecodeState]) -> list[PrefixTree]:
        """A chain for each state."""
        candidates, contexts, _ = prepare_rescoring(None, states, 1, None, "BlockDrafter")
        return _list_drafts(states, candidates, contexts, None, "top_k", num_drafts=1, alpha=0.0)


class LatticeDrafter(Drafter):
    """The p best paths through the top-k lattice under heads + alpha * n-gram LM.

    Args:
        lm: n-gram LM over the target's token ids, or None: heads alone ("0-gram").
        top_k: k, candidates of a slot.
        num_drafts: p, drafts verified together; 1 is n-gram rescoring.
        alpha: weight of the LM's log probabilities.
        cache: whether a cache of prompt and output, of each sequence its own, is mixed into the LM;
            an int is the cache's order, True is 4. See `lattice_bpd.ContextNGram`.

    Raises:
        TypeError: a cache that is neither bool nor int.
        ValueError: a cache of an order out of range.
    """

    def __init__(
        self,
        lm: NGramLM | None,
        *,
        top_k: int = 16,
        num_drafts: int = 16,
        alpha: float = 0.5,
        cache: bool | int = False,
    ) -> None:
        self.lm, self.top_k, self.num_drafts, self.alpha = lm, top_k, num_drafts, alpha
        self._caches = SequenceCaches.of_option(cache, lm)

    def propose(self, state: DecodeState) -> Drafts:
        """(1, p, num_slots) token ids; see `rescore_lattice`.

        Raises:
            ValueError: the LM's vocabulary is not the target's, or top_k exceeds it.
        """
        return self.propose_batch([state])

    def propose_batch(self, states: Sequence[DecodeState]) -> Drafts:
        """(B, p, H) token ids."""
        caches = self._caches
        candidates, contexts, found = prepare_rescoring(
            self.lm, states, self.top_k, caches, "LatticeDrafter"
        )
        with states[0].stats.stage("rescore"):
            if found is not None and caches is None:
                return rescore_intersections(
                    candidates, found, contexts, self.lm, self.num_drafts, self.alpha
                )
            return rescore_lattice(
                candidates,
                contexts,
                self.lm,
                num_drafts=self.num_drafts,
                alpha=self.alpha,
                cache=None if caches is None else caches.update(states),
            )

    def propose_prefix_trees(self, states: Sequence[DecodeState]) -> list[PrefixTree] | None:
        """A tree of p drafts for each state; None under constraints."""
        if states[0].constrained is not None:
            return None
        candidates, contexts, _ = prepare_rescoring(
            self.lm, states, self.top_k, self._caches, "LatticeDrafter"
        )
        caches = None if self._caches is None else self._caches.update(states)
        return _list_drafts(
            states, candidates, contexts, self.lm, "rescore",
            num_drafts=self.num_drafts, alpha=self.alpha, caches=caches,
        )  # fmt: skip


def _list_drafts(
    states: Sequence[DecodeState],
    candidates: Candidates,
    contexts: Sequence[Sequence[int]],
    lm: NGramLM | None,
    stage: str,
    **options: Any,
) -> list[PrefixTree]:
    """The best drafts of each state as a tree; counts their stutter."""
    start = time.perf_counter()
    trees = search_drafts(candidates, contexts, lm, [state.room for state in states], **options)
    for state, tree in zip(states, trees, strict=True):
        state.stats.add_repeats(*tree.count_repeats())
    states[0].stats.lap(stage, start)
    return trees


class OracleDrafter(Drafter):
    """The path through the top-k lattice with the longest accepted prefix (paper 6.3).

    It looks the target's output up, so it saves nothing: it tells how much better drafts could be.

    Args:
        continuation: (m,) ints, the target's greedy output behind the prompt.
        top_k: k, candidates of a slot.
    """

    def __init__(self, continuation: Sequence[int], *, top_k: int = 16) -> None:
        self.continuation, self.top_k = list(continuation), top_k

    def propose(self, state: DecodeState) -> Drafts:
        """(1, 1, num_slots): the target's own tokens as far as the lattice holds them."""
        logits = state.head_logits()
        with state.stats.stage("top_k"):
            found, _ = find_candidates([state], logits[None], self.top_k, "OracleDrafter")
        slots = found.token_ids[0].tolist()
        done = len(state.tokens) - state.prompt_length
        wanted = self.continuation[done : done + state.num_slots]
        path = [ids[0] for ids in slots]
        for slot, (token, ids) in enumerate(zip(wanted, slots, strict=False)):
            if token not in ids:
                break
            path[slot] = token
        token_ids: Any = np.array(path, dtype=np.int32)[None, None]
        return Drafts(token_ids, np.zeros((1, 1), np.float32), np.ones(1, np.int32))
