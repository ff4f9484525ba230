"""The chain of greatest expected accepted length, for targets that verify one draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.drafters.head_candidates import prepare_rescoring
from lattice_bpd.decode.drafters.p_best import search_lists
from lattice_bpd.decode.drafters.target_noise import draft_keys, sampling_temperature
from lattice_bpd.decode.drafters.tree import LatticeTreeDrafter, row_tree
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.draft.sampled_tree import sample_tree
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.verify.prefix_tree import PrefixTree

_CONFIG = DraftConfig("bpd", top_k=1)


class ChainDrafter(Drafter):
    """One draft: the path of greatest expected accepted length of the rescored lattice.

    Better than the best path (strategy "ngram") if only one draft can be verified. The trees have
    log probabilities, so a caller can cut a draft at an improbable prefix.

    Args:
        lm: n-gram LM over the target's token ids, or None: heads alone ("0-gram").
        config: options; None: the defaults.
        options: by name, instead of the config's: top_k, alpha, temperature, normalization;
            see `DraftConfig`.

    Raises:
        TypeError: an unknown option.
        ValueError: an option out of range; in `propose`, an LM of another vocabulary than the
            target's, or a top_k above V.
    """

    def __init__(
        self, lm: NGramLM | None, config: DraftConfig | None = None, **options: Any
    ) -> None:
        self.lm, self.config = lm, DraftConfig.make("ChainDrafter", config, options)

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree]:
        """A chain for each state."""
        candidates, contexts, _ = prepare_rescoring(self.config, self.lm, states, "ChainDrafter")
        return search_lists(
            states, candidates, contexts, self.lm, "rescore", kind="chain", alpha=self.config.alpha,
            temperature=self.config.temperature * sampling_temperature(states),
        )  # fmt: skip


class ArgmaxDrafter(Drafter):
    """One draft: the most likely token of each head (smallest id among equals).

    Source: Stern et al. 2018; Kim et al. 2024, algorithm 1.
    """

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree]:
        """A chain for each state."""
        candidates, contexts, _ = prepare_rescoring(_CONFIG, None, states, "ArgmaxDrafter")
        return search_lists(states, candidates, contexts, None, "top_k", alpha=0.0)


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
                candidates.at_temperature(temperature), contexts, self.lm, seed=draft_keys(states),
                max_nodes=self.max_nodes, alpha=self.config.alpha / temperature,
            )  # fmt: skip
            return [row_tree(batch, row, state) for row, state in enumerate(states)]
