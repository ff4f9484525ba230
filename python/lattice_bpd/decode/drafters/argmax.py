"""The most likely token of each head as one draft: blockwise parallel decoding (BPD)."""

from __future__ import annotations

from collections.abc import Sequence

from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.drafters.head_candidates import prepare_rescoring
from lattice_bpd.decode.drafters.p_best import search_lists
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.verify.prefix_tree import PrefixTree

_CONFIG = DraftConfig("bpd", top_k=1)


class ArgmaxDrafter(Drafter):
    """One draft: the most likely token of each head (smallest id among equals).

    Source: Stern et al. 2018; Kim et al. 2024, algorithm 1.
    """

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree]:
        """A chain for each state."""
        candidates, contexts, _ = prepare_rescoring(_CONFIG, None, states, "ArgmaxDrafter")
        return search_lists(states, candidates, contexts, None, "top_k", num_drafts=1, alpha=0.0)
