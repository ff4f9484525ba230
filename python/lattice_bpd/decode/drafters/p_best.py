"""The p best paths through the top-k lattice as drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lattice_bpd.decode.drafters.head_candidates import LatticeDrafter
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.verify.prefix_tree import PrefixTree


class PBestDrafter(LatticeDrafter):
    """The p best paths through the top-k lattice under heads + alpha * n-gram LM.

    Args:
        lm: n-gram LM over the target's token ids, or None: heads alone ("0-gram").
        config: options; None: the defaults.
        options: by name, instead of the config's: top_k, num_drafts, alpha, normalization;
            see `DraftConfig`.

    Raises:
        TypeError: an unknown option.
        ValueError: an option out of range, or of other strategies; in `propose`, an LM of another
            vocabulary than the target's, or a top_k above V.

    Source: Kim et al. 2024, section 7.2.
    """

    strategy = "p_best"

    def __init__(
        self, lm: NGramLM | None, config: DraftConfig | None = None, **options: Any
    ) -> None:
        super().__init__(lm, config, **options)
        self.num_drafts = 1 if self.config.strategy == "ngram" else self.config.num_drafts

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree]:
        """A tree of p drafts for each state."""
        return self.search(states, "drafts", self.num_drafts)


class ArgmaxDrafter(PBestDrafter):
    """One draft: the most likely token of each head (smallest id among equals).

    Source: Stern et al. 2018; Kim et al. 2024, algorithm 1.
    """

    def __init__(self) -> None:
        super().__init__(None, DraftConfig("ngram", top_k=1))
