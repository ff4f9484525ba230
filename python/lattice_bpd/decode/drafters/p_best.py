"""The p best paths through the top-k lattice as drafts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.drafters.head_candidates import prepare_rescoring, search_allowed
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.config import DraftConfig, check_used
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.lattice.logits import Candidates
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.search import search_trees


class PBestDrafter(Drafter):
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

    def __init__(
        self, lm: NGramLM | None, config: DraftConfig | None = None, **options: Any
    ) -> None:
        self.lm, self.config = lm, DraftConfig.make("PBestDrafter", config, options)
        check_used("PBestDrafter", "p_best", options)
        self.num_drafts = 1 if self.config.strategy == "ngram" else self.config.num_drafts

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree]:
        """A tree of p drafts for each state."""
        candidates, contexts, depends = prepare_rescoring(
            self.config, self.lm, states, "PBestDrafter"
        )
        search = partial(
            search_lists, states, candidates, contexts, self.lm, "rescore", alpha=self.config.alpha
        )
        # Drafts share about half of their nodes.
        most = (self.num_drafts + 1) * candidates.token_ids.shape[1] // 2
        return search_allowed(states, search, self.num_drafts, most, depends=depends)


def search_lists(
    states: Sequence[DecodeState],
    candidates: Candidates | LatticeInput,
    contexts: Sequence[Sequence[int]],
    lm: NGramLM | None,
    stage: str,
    **options: Any,
) -> list[PrefixTree]:
    """The tree of each lattice, see `search_trees`; counts its time."""
    start = time.perf_counter()
    lengths = [state.max_draft_length for state in states]
    trees = search_trees(candidates, contexts, lm, lengths, **{"kind": "drafts", **options})
    states[0].stats.lap(stage, start)
    return trees
