"""Logits of draft heads that share the output embedding of an engine's model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lattice_bpd.models.heads import BlockwiseHeads


class HeadLogits:
    """Head logits from hidden states.

    Args:
        heads: `BlockwiseHeads`, whose states go through `compute_logits`, or another head source
            with logits of its own; on the device and in the dtype of the model.
        compute_logits: hidden states (N, D) -> logits (N, V), the model's own output embedding
            with its scale, caps and gathering; None on a process that gets no logits.
        num_slots: slots to compute, at most those of the heads.
    """

    def __init__(
        self, heads: Any, compute_logits: Callable[[Tensor], Tensor | None], num_slots: int
    ) -> None:
        self.compute_logits = compute_logits
        self.num_slots = min(num_slots, int(heads.num_slots))
        self.heads = heads

    @torch.no_grad()
    def __call__(self, hidden: Tensor, exact_tokens: Sequence[int]) -> Tensor | None:
        """Logits of all slots.

        Args:
            hidden: (B, D) float, the states that predicted the exact tokens.
            exact_tokens: (B,) token ids.

        Returns:
            (B, num_slots, V) float, or None where `compute_logits` returns None.
        """
        if isinstance(self.heads, BlockwiseHeads):
            states = self.heads(hidden, range(self.num_slots))  # (B, H, D)
            logits = self.compute_logits(states.view(-1, hidden.shape[1]))
            return None if logits is None else logits.view(len(hidden), self.num_slots, -1)
        tokens = torch.tensor(exact_tokens, device=hidden.device)
        every: Tensor = self.heads(hidden, tokens)
        return every[:, : self.num_slots]
