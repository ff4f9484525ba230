"""Trees of the lattice's paths: their most probable prefixes, or sampled ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from lattice_bpd.decode.drafters.head_candidates import LatticeDrafter
from lattice_bpd.decode.drafters.target_noise import (
    WIDER,
    draft_keys,
    sampling_temperature,
    select_with_noise,
    target_noise,
)
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.draft.sampled_tree import SampledTree, SharedNoise, sample_tree
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.verify.prefix_tree import PrefixTree

SHARPNESS = 0.5  # see SharedNoise


class LatticeTreeDrafter(LatticeDrafter):
    """The options of drafters that build one tree of a lattice.

    Attributes:
        max_nodes: N; may be changed between steps.
    """

    strategy = "tree"

    def __init__(
        self, lm: NGramLM | None, config: DraftConfig | None = None, **options: Any
    ) -> None:
        super().__init__(lm, config, **options)
        self.max_nodes = self.config.tree_nodes


class TreeDrafter(LatticeTreeDrafter):
    """The most probable prefixes of all paths through the lattice, as one tree of N nodes.

    More efficient than the p best paths of as many tokens, which repeat their prefixes and all
    reach the last slot. If the target samples with `lattice_bpd.verify.Sampled`, the tree uses the
    noise of its samples.

    Args:
        lm: n-gram LM over the target's token ids, or None: heads alone ("0-gram").
        config: options; None: the defaults.
        options: by name, instead of the config's: top_k, max_nodes, alpha, temperature,
            normalization; see `DraftConfig`.

    Raises:
        TypeError: an unknown option.
        ValueError: an option out of range, or of other strategies; in `propose`, an LM of another
            vocabulary than the target's, or a top_k above V.
    """

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree]:
        """A tree of N draft tokens for each state."""
        first = states[0]
        noise = None if first.selector is None else target_noise(states, SHARPNESS)
        temperature = self.config.temperature
        if first.selector is not None:
            temperature *= sampling_temperature(states)
        if noise is not None:
            return self._with_noise(states, noise, temperature)
        return self.search(states, "tree", self.max_nodes, temperature)

    def _with_noise(
        self, states: Sequence[DecodeState], noise: SharedNoise, temperature: float
    ) -> list[PrefixTree]:
        """Trees given the noise of the target's next samples."""
        top_k = self.config.top_k
        wide = min(WIDER * top_k, states[0].model.vocab_size)
        candidates, contexts, _ = self.read_lattices(states, top_k=wide)
        start = time.perf_counter()
        batch = sample_tree(
            select_with_noise(candidates.at_temperature(temperature), noise, top_k),
            contexts,
            self.lm,
            noise=noise,
            max_nodes=self.max_nodes,
            alpha=self.config.alpha / temperature,
        )
        trees = [row_tree(batch, row, state) for row, state in enumerate(states)]
        states[0].stats.lap("rescore", start)
        return trees


class SampledTreeDrafter(LatticeTreeDrafter):
    """Paths sampled from the lattice's joint distribution without replacement, as one tree.

    The joint distribution is taken at the target's sampling temperature. With
    `acceptance=lattice_bpd.verify.Rejection(...)` the output has the distribution of plain
    sampling; other rules treat the tree as a list of drafts.

    Args:
        lm: n-gram LM over the target's token ids, or None: independent heads.
        config: options; None: the defaults.
        options: as those of `TreeDrafter`.
    """

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree]:
        """A tree of N draft tokens for each state; see `sample_tree`."""
        candidates, contexts, _ = self.read_lattices(states, all_slots=True)
        with states[0].stats.stage("rescore"):
            temperature = self.config.temperature * sampling_temperature(states)
            batch = sample_tree(
                candidates.at_temperature(temperature), contexts, self.lm, seed=draft_keys(states),
                max_nodes=self.max_nodes, alpha=self.config.alpha / temperature,
            )  # fmt: skip
            return [row_tree(batch, row, state) for row, state in enumerate(states)]


def row_tree(batch: SampledTree, row: int, state: DecodeState) -> PrefixTree:
    """A row as a tree of at most the allowed depth; sampled children keep their distributions."""
    count, limit = int(batch.counts[row]), state.max_draft_length
    tree = PrefixTree.from_nodes(
        state.tokens[-1], batch.token_ids[row, :count], batch.parents[row, :count], limit,
        batch.log_probs[row, :count],
    )  # fmt: skip
    if batch.is_sampled:
        nodes = [-1, *np.flatnonzero(batch.depths[row, :count] < limit).tolist()]
        tree.sampled_from = lambda node: batch.sampled_from(row, nodes[node])
    return tree
