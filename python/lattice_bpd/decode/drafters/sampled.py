"""Drafts sampled from the rescored lattice, for targets that sample by rejection."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lattice_bpd.decode.drafters.head_candidates import prepare_rescoring
from lattice_bpd.decode.drafters.target_noise import draft_keys, sampling_temperature
from lattice_bpd.decode.drafters.tree import LatticeTreeDrafter
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.sampled_tree import SampledTree, sample_tree
from lattice_bpd.verify.prefix_tree import PrefixTree


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
        candidates, contexts, _ = prepare_rescoring(
            self.config, self.lm, states, "SampledTreeDrafter", all_slots=True
        )
        with states[0].stats.stage("rescore"):
            temperature = self.config.temperature * sampling_temperature(states)
            batch = sample_tree(
                candidates.at_temperature(temperature),
                contexts,
                self.lm,
                max_nodes=self.max_nodes,
                alpha=self.config.alpha / temperature,
                seed=draft_keys(states),
            )
            return [_row_tree(batch, row, state) for row, state in enumerate(states)]


def _row_tree(batch: SampledTree, row: int, state: DecodeState) -> PrefixTree:
    """A row as a tree of at most the allowed depth; children keep their distributions."""
    count, limit = int(batch.counts[row]), state.max_draft_length
    tree = PrefixTree.from_nodes(
        state.tokens[-1], batch.token_ids[row, :count], batch.parents[row, :count], limit,
        batch.log_probs[row, :count],
    )  # fmt: skip
    nodes = [-1, *np.flatnonzero(batch.depths[row, :count] < limit).tolist()]
    tree.sampled_from = lambda node: batch.sampled_from(row, nodes[node])
    return tree
