"""The most probable prefixes of all paths through the lattice, as one tree."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from lattice_bpd.decode.constraint.search import places_of
from lattice_bpd.decode.constraint.trees import cut_trees, with_spare
from lattice_bpd.decode.drafters.basic import Drafter
from lattice_bpd.decode.drafters.head_candidates import prepare_rescoring
from lattice_bpd.decode.drafters.ngram_caches import SequenceCaches
from lattice_bpd.decode.drafters.repeats import Repeats
from lattice_bpd.decode.drafters.target_noise import (
    WIDER,
    favoured,
    sampling_temperature,
    target_noise,
)
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.draft_tree import DraftTree
from lattice_bpd.draft.rescore import rescore_tree
from lattice_bpd.draft.sampled_tree import DrawnTree, draw_tree
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.search import search_trees


class LatticeTreeDrafter(Drafter):
    """Numbers of the drafters that make one tree of a lattice, and the texts' caches."""

    def __init__(
        self,
        lm: NGramLM | None,
        *,
        top_k: int = 16,
        max_nodes: int = 36,
        alpha: float = 0.5,
        temperature: float = 1.0,
        cache: bool | int = False,
    ) -> None:
        if not 0.0 < temperature < math.inf:
            raise ValueError(
                f"{type(self).__name__}: temperature is {temperature}; expected a number above 0"
            )
        self.lm, self.top_k, self.max_nodes, self.alpha = lm, top_k, max_nodes, alpha
        self.temperature = temperature
        self._caches = SequenceCaches.of_option(cache, lm)


class TreeDrafter(LatticeTreeDrafter):
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
        super().__init__(
            lm, top_k=top_k, max_nodes=max_nodes, alpha=alpha, temperature=temperature, cache=cache
        )
        self.sharpness = sharpness
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
            candidates = candidates.at_temperature(temperature)
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
        trees = search_trees(
            candidates.at_temperature(self.temperature),
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
