"""Drafters: what is proposed for verification. Everything else of decoding is the same for all.

NoDrafter        nothing                                        greedy decoding
BlockDrafter     the argmax of every head                       BPD (paper algorithm 1)
LatticeDrafter   the p best paths through the top-k lattice     n-gram and p-best BPD (7.2)
TreeDrafter      the most probable prefixes of all its paths    one tree instead of p paths
OracleDrafter    the path that agrees longest with the target   an upper bound (6.3)
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from lattice_bpd import (
    Drafts,
    DraftTree,
    DrawnTree,
    NGramLM,
    draw_tree,
    rescore_lattice,
    rescore_tree,
)
from lattice_bpd.decode.constraint.search import (
    find_candidates,
    places_of,
    rescore_intersections,
)
from lattice_bpd.decode.constraint.trees import cut_trees, with_spare
from lattice_bpd.decode.drawn_nodes import DrawnNodes
from lattice_bpd.decode.head_candidates import batch_head_logits, prepare_rescoring
from lattice_bpd.decode.noise import WIDER, favoured, sampling_temperature, target_noise
from lattice_bpd.decode.repeats import Repeats
from lattice_bpd.decode.sequence_caches import SequenceCaches
from lattice_bpd.decode.state import DecodeState
from lattice_bpd.lattice.logits import Candidates
from lattice_bpd.verify import PrefixTree, search_drafts, search_trees

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


class TreeDrafter(Drafter):
    """The most probable prefixes of all paths through the lattice, as one tree of N nodes.

    Better than as many tokens of the p best paths, which repeat their prefixes and each go on to
    the last slot.

    Args:
        lm: n-gram LM over the target's token ids, or None: heads alone ("0-gram").
        top_k: k, candidates of a slot.
        max_nodes: N, tokens verified together besides the exact one.
        alpha: weight of the LM's log probabilities.
        temperature: divides all scores, above 0. The rank of paths stays; above 1 their
            probabilities come closer, and the tree grows wider and less deep. Heads and LM
            agree more often than independent witnesses would, so their sum is too sure of itself.
        cache: see `LatticeDrafter`. With one the tree also goes on beyond the last slot, as far as
            what followed in the text before is among the N most probable prefixes.
        sharpness: where the target samples by `lattice_bpd.verify.Sampled`, how far probabilities
            are trusted beside the noise of its draws, which the tree then takes into account; see
            `lattice_bpd.TargetNoise`.

    Raises:
        TypeError: a cache that is neither bool nor int.
        ValueError: a temperature or sharpness that is not above 0, or a cache of an order out of
            range.
    """

    def __init__(
        self,
        lm: NGramLM | None,
        *,
        top_k: int = 16,
        max_nodes: int = 36,
        alpha: float = 0.5,
        temperature: float = 1.0,
        cache: bool | int = False,
        sharpness: float = 0.5,
    ) -> None:
        if not 0.0 < sharpness < math.inf:
            raise ValueError(f"TreeDrafter: sharpness is {sharpness}; expected a number above 0")
        if not 0.0 < temperature < math.inf:
            raise ValueError(
                f"TreeDrafter: temperature is {temperature}; expected a number above 0"
            )
        self.lm, self.top_k, self.max_nodes, self.alpha = lm, top_k, max_nodes, alpha
        self.temperature, self.sharpness = temperature, sharpness
        self._caches = SequenceCaches.of_option(cache, lm)
        self._repeats = None if self._caches is None else Repeats()

    def propose(self, state: DecodeState) -> DraftTree | DrawnTree:
        """(1, N) nodes; see `rescore_tree`.

        Raises:
            ValueError: the LM's vocabulary is not the target's, or top_k exceeds it.
        """
        return self.propose_batch([state])

    def propose_batch(self, states: Sequence[DecodeState]) -> DraftTree | DrawnTree:
        """(B, N) nodes."""
        noise = target_noise(states, self.sharpness)
        caches = self._caches
        wide = self.top_k if noise is None else min(WIDER * self.top_k, states[0].model.vocab_size)
        candidates, contexts, found = prepare_rescoring(
            self.lm, states, wide, caches, "TreeDrafter"
        )
        with states[0].stats.stage("rescore"):
            temperature = self.temperature * sampling_temperature(states)
            if temperature != 1.0:
                scores = candidates.scores / np.float32(temperature)
                candidates = replace(candidates, scores=scores)
            options: dict[str, Any] = {
                "max_nodes": self.max_nodes if found is None else with_spare(self.max_nodes),
                "alpha": self.alpha / temperature,
                "cache": None if caches is None else caches.update(states),
            }
            tree: DraftTree | DrawnTree
            if noise is None:
                tree = rescore_tree(candidates, contexts, self.lm, **options)
            else:
                candidates = favoured(candidates, noise, self.top_k)
                tree = draw_tree(candidates, contexts, self.lm, noise=noise, **options)
        if self._repeats is not None:
            with states[0].stats.stage("lookup"):
                tree = self._repeats.extend(tree, states, options["max_nodes"])
        if found is None or not isinstance(tree, DraftTree):
            return tree
        with states[0].stats.stage("rescore"):
            return cut_trees(tree, places_of(states), self.max_nodes)

    def propose_prefix_trees(self, states: Sequence[DecodeState]) -> list[PrefixTree] | None:
        """A tree of N draft tokens for each state; None under constraints or with a chooser."""
        first = states[0]
        if not (first.chooser is None is first.constrained):
            return None
        candidates, contexts, _ = prepare_rescoring(
            self.lm, states, self.top_k, self._caches, "TreeDrafter"
        )
        start = time.perf_counter()
        if self.temperature != 1.0:
            candidates = replace(
                candidates, scores=candidates.scores / np.float32(self.temperature)
            )
        trees = search_trees(
            candidates,
            contexts,
            self.lm,
            [state.room for state in states],
            max_nodes=self.max_nodes,
            alpha=self.alpha / self.temperature,
            caches=None if self._caches is None else self._caches.update(states),
        )
        start = first.stats.lap("rescore", start)
        if self._repeats is not None:
            pairs = zip(trees, states, strict=True)
            trees = [self._repeats.extend_tree(*pair, self.max_nodes) for pair in pairs]
            first.stats.lap("lookup", start)
        return trees


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
