"""What the search returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Drafts:
    """The best drafts of each lattice of a batch, best first.

    Arrays are numpy arrays where the logits were, and torch tensors on the logits' device where
    those were.

    Attributes:
        token_ids: (B, p, H) int32. Row b holds ``counts[b]`` drafts; the rows behind them, where
            a lattice has fewer than p paths, are filled with -1 (``Drafts.PAD_TOKEN``).
        scores: (B, p) float32, sum of head scores + alpha * natural log LM probabilities, falling.
            -inf in the rows behind the drafts.
        counts: (B,) int32, the true number of drafts: min(p, number of paths).
    """

    token_ids: Any
    scores: Any
    counts: Any

    PAD_TOKEN = -1

    def __len__(self) -> int:
        """B, the number of lattices."""
        return len(self.counts)

    def __repr__(self) -> str:
        """Shape, and the best draft of the first lattice."""
        batch, num_drafts, slots = self.token_ids.shape
        head = f"Drafts(batch {batch}, up to {num_drafts} drafts of {slots} tokens)"
        if batch == 0:
            return head
        best = self.token_ids[0, 0].tolist()
        return f"{head}\n  best of row 0: {best}, score {float(self.scores[0, 0]):.4f}"
