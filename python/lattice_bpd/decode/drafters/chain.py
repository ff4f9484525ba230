"""The chain of greatest expected accepted length, for targets that verify one draft."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.drafters.head_candidates import prepare_rescoring
from lattice_bpd.decode.drafters.target_noise import sampling_temperature
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.search import search_chains


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
        start = time.perf_counter()
        temperature = self.config.temperature * sampling_temperature(states)
        chains = search_chains(
            candidates.at_temperature(temperature),
            contexts,
            self.lm,
            [state.max_draft_length for state in states],
            alpha=self.config.alpha / temperature,
        )
        for state, chain in zip(states, chains, strict=True):
            state.stats.add_repeats(*chain.count_repeats())
        states[0].stats.lap("rescore", start)
        return chains
