"""Medusa heads: residual blocks on a hidden state, and an output projection per head.

    head i:  x -> x + SiLU(W_1 x + b_1) -> .. -> x + SiLU(W_L x + b_L) -> U_i x     (V logits)

Head i (from 0) predicts slot i of the lattice: the token i+2 positions after the last input token
(Cai et al. 2024, section 2.1.1).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from lattice_bpd.models.head_files import HeadFiles, SavedHeads
from lattice_bpd.models.hooks import loaded

_SIZES = ("hidden_size", "vocab_size", "num_slots", "num_layers")
MEDUSA_FILES = HeadFiles("medusa_heads", {**dict.fromkeys(_SIZES, 1), "num_layers": 0})


class MedusaHeads(SavedHeads):
    """H heads evaluated together; `heads=` of `generate`.

    Args:
        hidden_size: D, the width of the target's last hidden state.
        vocab_size: V.
        num_slots: H, Medusa's `medusa_num_heads`; the target's own head is not among them.
        num_layers: L, residual blocks of a head.

    Attributes:
        block_weight: (L, H, D, D) float.
        block_bias: (L, H, D) float.
        output_weight: (H, V, D) float.
        trained_on: see `BlockwiseHeads`.

    Raises:
        ValueError: a size below 1, or num_layers below 0.
    """

    files = MEDUSA_FILES

    def __init__(
        self, hidden_size: int, vocab_size: int, num_slots: int, num_layers: int = 1
    ) -> None:
        super().__init__()
        if min(hidden_size, vocab_size, num_slots) < 1 or num_layers < 0:
            raise ValueError(
                f"MedusaHeads: hidden_size {hidden_size}, vocab_size {vocab_size}, num_slots "
                f"{num_slots}, num_layers {num_layers}; expected 1 or more (num_layers: 0 or more)"
            )
        self.hidden_size, self.vocab_size = hidden_size, vocab_size
        self.num_slots, self.num_layers = num_slots, num_layers
        # Zero blocks: every head starts as its projection alone.
        shape = (num_layers, num_slots, hidden_size)
        self.block_weight = nn.Parameter(torch.zeros(*shape, hidden_size))
        self.block_bias = nn.Parameter(torch.zeros(*shape))
        self.output_weight = nn.Parameter(torch.zeros(num_slots, vocab_size, hidden_size))

    @classmethod
    def from_target(
        cls, target: PreTrainedModel, num_slots: int, num_layers: int = 1
    ) -> MedusaHeads:
        """Untrained heads, each a copy of the target's output embedding, as Medusa starts them."""
        output: Any = target.get_output_embeddings()  # type: ignore[no-untyped-call]
        vocab_size, width = output.weight.shape
        heads = cls(width, vocab_size, num_slots, num_layers)
        with torch.no_grad(), loaded(output):
            heads.output_weight.copy_(output.weight.expand_as(heads.output_weight))
        return heads

    def forward(self, hidden: Tensor, exact_tokens: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Logits of all slots.

        Args:
            hidden: (..., D) float.
            exact_tokens: unused; heads run side by side.

        Returns:
            (..., H, V) float.
        """
        rows = hidden.reshape(1, -1, self.hidden_size)  # (1, N, D)
        states = rows.expand(self.num_slots, -1, -1)  # (H, N, D)
        for weight, bias in zip(self.block_weight, self.block_bias, strict=True):
            inner = torch.baddbmm(bias.unsqueeze(1), states, weight.transpose(1, 2))
            states = states + F.silu(inner)
        logits = torch.bmm(states, self.output_weight.transpose(1, 2))  # (H, N, V)
        return logits.transpose(0, 1).reshape(*hidden.shape[:-1], self.num_slots, self.vocab_size)
