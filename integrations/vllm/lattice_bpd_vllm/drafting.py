"""Head logits of a batch to one draft for each request; for any engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.lattice.logits import Candidates, select_top_k
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.verify.search import draft_chains, search_trees

Chains = list[list[int]]
Lattices = Candidates | LatticeInput


@dataclass(frozen=True)
class LatticeDrafter:
    """Drafts one chain of tokens for each lattice of a batch.

    Attributes:
        lm: n-gram LM over the target's token ids, or None: the heads alone.
        config: top_k, alpha, temperature, normalization.
        draft: "chain", "best" or "argmax"; see `DrafterOptions`.
        threads: of top-k and search, 0 for all cores.
    """

    lm: NGramLM | None
    config: DraftConfig
    draft: str = "chain"
    threads: int = 0

    @property
    def context_length(self) -> int:
        """Tokens before the lattice that a draft depends on."""
        return 1 if self.lm is None else max(self.lm.order - 1, 1)

    def propose(
        self,
        slots: Any,
        contexts: Sequence[Any],
        max_lengths: Sequence[int],
    ) -> Chains:
        """A draft for each lattice.

        Args:
            slots: logits (B, H, V) float, numpy or torch on any device, or a LatticeInput of B
                lattices.
            contexts: B sequences of token ids, each the last `context_length` tokens of a text (or
                all of them), the exact token included.
            max_lengths: B ints, 1 or more: the longest draft. A lattice is cut to so many slots
                before the search.

        Returns:
            B lists of at most that many token ids; empty where every token is masked.

        Raises:
            ValueError: NaN or +inf in the logits, another vocabulary than the LM's, or top_k
                above V.
        """
        candidates = self._candidates(slots)
        alpha, temperature = self.config.alpha, self.config.temperature
        if self.draft == "chain":
            return draft_chains(
                candidates, contexts, self.lm, max_lengths, alpha=alpha, temperature=temperature,
                threads=self.threads,
            )  # fmt: skip
        candidates = cut_slots(candidates, max_lengths)
        if self.draft == "argmax":
            return _first_candidates(candidates)
        trees = search_trees(
            candidates, contexts, self.lm, max_lengths,
            kind="drafts", alpha=alpha, threads=self.threads,
        )  # fmt: skip
        return [tree.token_ids[1:] for tree in trees]

    def _candidates(self, slots: Any) -> Lattices:
        """The candidates of each slot."""
        top_k = 1 if self.draft == "argmax" else self.config.top_k
        if isinstance(slots, LatticeInput):
            return self.config.lattice_of(slots, top_k)
        best = select_top_k(
            slots, top_k, log_softmax=False, where="LatticeDrafter", threads=self.threads
        )
        return self.config.lattice_of(best)


def cut_slots(candidates: Lattices, max_lengths: Sequence[int]) -> Lattices:
    """The candidates with all slots after `max_lengths` masked, which ends a lattice.

    Args:
        candidates: (B, H, k).
        max_lengths: B ints.
    """
    if isinstance(candidates, LatticeInput):
        return candidates.end_after(max_lengths)
    slots = int(candidates.scores.shape[1])
    if min(max_lengths, default=slots) >= slots:
        return candidates
    beyond = np.arange(slots) >= np.asarray(max_lengths)[:, None]  # (B, H)
    scores = np.where(beyond[..., None], np.float32(-np.inf), candidates.scores)
    return Candidates(candidates.token_ids, scores)


def _first_candidates(candidates: Lattices) -> Chains:
    """The best token of each slot, up to the first masked slot."""
    chains = []
    token_ids, scores = candidates.token_ids[..., 0].tolist(), candidates.scores[..., 0].tolist()
    for tokens, values in zip(token_ids, scores, strict=True):
        length = values.index(-math.inf) if -math.inf in values else len(tokens)
        chains.append(tokens[:length])
    return chains
