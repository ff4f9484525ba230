"""Logits of draft heads that share the output embedding of an engine's model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

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
        self._blockwise = isinstance(heads, BlockwiseHeads)
        if self._blockwise:
            self._parts = parts_of(heads, self.num_slots)

    def __call__(self, hidden: Tensor, exact_tokens: Sequence[int]) -> Tensor | None:
        """Logits of all slots.

        Args:
            hidden: (B, D) float, the states that predicted the exact tokens.
            exact_tokens: (B,) token ids.

        Returns:
            (B, num_slots, V) float, or None where `compute_logits` returns None.
        """
        if self._blockwise:
            states = head_states(self._parts, hidden)  # (B, H, D)
            logits = self.compute_logits(states.view(-1, hidden.shape[1]))
            return None if logits is None else logits.view(len(hidden), self.num_slots, -1)
        tokens = torch.tensor(exact_tokens, device=hidden.device)
        every: Tensor = self.heads(hidden, tokens)
        return every[:, : self.num_slots]


class HeadParts(NamedTuple):
    """Weights of `BlockwiseHeads` for S slots, as `head_states` uses them.

    Attributes:
        inner_weight: (S*F, D).
        inner_bias: (S*F,).
        outer_weight: (S, F, D).
        outer_bias: (S, 1, D).
    """

    inner_weight: Tensor
    inner_bias: Tensor
    outer_weight: Tensor
    outer_bias: Tensor


def parts_of(heads: BlockwiseHeads, num_slots: int) -> HeadParts:
    """The first slots' weights; views of the heads' own."""
    size, slots = heads.inner_size, heads.num_slots
    inner_weight, inner_bias = heads.inner.weight.detach(), heads.inner.bias.detach()
    outer = heads.outer_weight.detach().view(slots, heads.hidden_size, size)
    return HeadParts(
        inner_weight[: num_slots * size],
        inner_bias[: num_slots * size],
        outer[:num_slots].transpose(1, 2),
        heads.outer_bias.detach()[:num_slots].unsqueeze(1),
    )


def head_states(parts: HeadParts, hidden: Tensor) -> Tensor:
    """What `BlockwiseHeads.forward` returns, in five operations instead of twelve.

    Args:
        parts: of the heads.
        hidden: (B, D) float.

    Returns:
        (B, S, D) float, contiguous.
    """
    slots, size, _ = parts.outer_weight.shape
    inner = F.silu(F.linear(hidden, parts.inner_weight, parts.inner_bias), inplace=True)
    inner = inner.view(-1, slots, size).transpose(0, 1)  # (S, B, F)
    # Into a transposed tensor torch multiplies slot by slot, which takes longer than the copy.
    states = torch.baddbmm(hidden + parts.outer_bias, inner, parts.outer_weight)
    return states.transpose(0, 1).contiguous()
