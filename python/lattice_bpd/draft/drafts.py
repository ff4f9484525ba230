"""Drafts, the result of a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Drafts:
    """The best drafts of each lattice of a batch, best first.

    Arrays are numpy arrays for numpy logits, and torch tensors on the logits' device for torch
    logits.

    Attributes:
        token_ids: (B, p, H) int32. Row b holds ``counts[b]`` drafts; if a lattice has fewer than
            p paths, the other rows are filled with -1 (``Drafts.PAD_TOKEN``). A draft shorter than
            H ends in -1.
        scores: (B, p) float32, descending: the sum of head scores and alpha * ln P of the LM. With
            local normalization: the natural log of the draft's probability. For objectives other
            than ``"score"``: the expected number of accepted draft tokens. -inf in padding.
        counts: (B,) int32, the number of drafts: min(p, number of paths). 0 if all tokens of the
            first slot are masked.
        prefix_log_probs: (B, 1, H) float32, natural log of the probability that a path sampled from
            the lattice begins with the first 1, 2, .. H tokens of the draft: descending, -inf in
            the padding. The longest prefix of probability p or more has
            ``(prefix_log_probs[b, 0] >= math.log(p)).sum()`` tokens. For a greedy walk always by
            local normalization. None for drafts by ``objective="score"``.
    """

    token_ids: Any
    scores: Any
    counts: Any
    prefix_log_probs: Any = None

    PAD_TOKEN = -1

    @property
    def lengths(self) -> Any:
        """(B, p) int32, the number of tokens of each draft: H, or fewer.

        Drafts are shorter than H if all tokens of a slot are masked, which ends its lattice, if
        the lattices of a batch have different numbers of slots, and from `rescore_fst`.
        """
        tokens = self.token_ids != self.PAD_TOKEN
        if isinstance(tokens, np.ndarray):
            return tokens.sum(axis=-1, dtype=np.int32)
        return tokens.sum(dim=-1).int()

    def __repr__(self) -> str:
        """Shape, and the best draft of the first lattice."""
        batch, num_drafts, slots = self.token_ids.shape
        head = f"Drafts(batch {batch}, up to {num_drafts} drafts of {slots} tokens)"
        if batch == 0:
            return head
        best = self.token_ids[0, 0].tolist()
        return f"{head}\n  best of row 0: {best}, score {float(self.scores[0, 0]):.4f}"
