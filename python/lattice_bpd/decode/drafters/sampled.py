"""Drafts drawn from the rescored lattice, for targets that sample by rejection."""

from __future__ import annotations

from collections.abc import Sequence

from lattice_bpd.decode.drafters.head_candidates import prepare_rescoring
from lattice_bpd.decode.drafters.target_noise import keys_of_draws, sampling_temperature
from lattice_bpd.decode.drafters.tree import LatticeTreeDrafter
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.sampled_tree import DrawnTree, draw_tree


class DrawnTreeDrafter(LatticeTreeDrafter):
    """Paths drawn from the lattice's joint distribution without replacement, as one tree.

    The joint is taken at the temperature of sampling. With
    `acceptance=lattice_bpd.verify.Rejection(...)` the output has the distribution of plain
    sampling; under other rules the tree is a list of guesses.

    Args:
        lm: n-gram LM over the target's token ids, or None: independent heads.
        top_k: k, candidates of a slot.
        max_nodes: N, tokens verified together besides the exact one.
        alpha: weight of the LM's log probabilities.
        temperature: divides all scores besides the temperature of sampling, above 0.
        cache: see `LatticeDrafter`.

    Raises:
        TypeError: a cache that is neither bool nor int.
        ValueError: a temperature that is not above 0, or a cache of an order out of range.
    """

    def propose(self, state: DecodeState) -> DrawnTree:
        """(1, N) nodes; see `draw_tree`.

        Raises:
            ValueError: the LM's vocabulary is not the target's, or top_k exceeds it.
        """
        return self.propose_batch([state])

    def propose_batch(self, states: Sequence[DecodeState]) -> DrawnTree:
        """(B, N) nodes."""
        caches = self._caches
        candidates, contexts, _ = prepare_rescoring(
            self.lm, states, self.top_k, caches, "DrawnTreeDrafter", whole=True
        )
        with states[0].stats.stage("rescore"):
            temperature = self.temperature * sampling_temperature(states)
            return draw_tree(
                candidates.at_temperature(temperature),
                contexts,
                self.lm,
                max_nodes=self.max_nodes,
                alpha=self.alpha / temperature,
                seed=keys_of_draws(states),
                cache=None if caches is None else caches.update(states),
            )
