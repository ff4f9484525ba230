"""Draft heads on the target's last hidden state.

Head 1 is the target's own output embedding. `BlockwiseHeads` are heads 2..h: each is a feed-forward
network with one hidden layer and a residual connection; its output goes through the target's output
embedding, so no head has a V-sized matrix (Stern et al. 2018, section 6; Kim et al. 2024, section
4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lattice_bpd.models.head_files import HeadFiles, SavedHeads
from lattice_bpd.models.linear import linear
from lattice_bpd.vocabulary import check_same_ids

BLOCKWISE_FILES = HeadFiles(
    "blockwise_heads", {"num_heads": 2, "hidden_size": 1, "inner_size": 1}, {"vocab_size": None}
)


class BlockwiseHeads(SavedHeads):
    """Feed-forward heads 2..h on one hidden state, evaluated together.

    The heads' matrices are stacked in two 2-D parameters, so that h-1 heads take two matrix
    products rather than 2(h-1) small ones, and `torch.optim.Muon` can train them.

    Args:
        hidden_size: D, the width of the target's last hidden state.
        num_heads: h, head 1 (the target's own) included; at least 2.
        inner_size: F, the width of each head's hidden layer; D when None.
        vocab_size: V of the target that they are trained on, if known: a target with another
            vocabulary is refused.

    Attributes:
        trained_on: a sample of the weights of the target that they were trained on, if it was
            saved with them.

    Raises:
        ValueError: num_heads below 2 or a size below 1.
    """

    files = BLOCKWISE_FILES

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        inner_size: int | None = None,
        *,
        vocab_size: int | None = None,
    ) -> None:
        super().__init__()
        inner_size = hidden_size if inner_size is None else inner_size
        if num_heads < 2:
            raise ValueError(
                f"BlockwiseHeads: num_heads is {num_heads}; expected 2 or more, since head 1 is "
                "the target's own; decode greedily if there is nothing to draft"
            )
        if hidden_size < 1 or inner_size < 1:
            raise ValueError(
                f"BlockwiseHeads: hidden_size {hidden_size} and inner_size {inner_size}; "
                "expected both to be 1 or more"
            )
        self.hidden_size, self.num_heads, self.inner_size = hidden_size, num_heads, inner_size
        self.vocab_size = vocab_size
        self.inner = nn.Linear(hidden_size, (num_heads - 1) * inner_size)
        # Zero: every head starts as a copy of head 1 (the residual alone), which trains stably.
        self.outer_weight = nn.Parameter(torch.zeros((num_heads - 1) * hidden_size, inner_size))
        self.outer_bias = nn.Parameter(torch.zeros(num_heads - 1, hidden_size))

    @property
    def num_slots(self) -> int:
        """H = h-1: the slots of the lattice that these heads fill."""
        return self.num_heads - 1

    def forward(self, hidden: Tensor, slots: Sequence[int] | None = None) -> Tensor:
        """Head states of every position.

        Args:
            hidden: (..., D) float, the target's hidden states that enter its output embedding.
            slots: the slots to compute, 0..H-1 in order; None: all H. Their weights are copied
                unless they are the first S.

        Returns:
            (..., S, D) float for S slots, contiguous; row j goes through the output embedding to
            give the logits of offset slots[j]+2 (the token after next is slot 0).
        """
        rows = hidden.reshape(-1, self.hidden_size)  # (N, D)
        inner_weight, inner_bias, weight, bias = self._weights_of(slots)
        inner = linear(rows, inner_weight, inner_bias)  # (N, S*F)
        inner = F.silu(inner, inplace=not torch.is_grad_enabled())
        inner = inner.view(len(rows), -1, self.inner_size).transpose(0, 1)  # (S, N, F)
        change = torch.bmm(inner, weight.transpose(1, 2).to(inner.dtype))  # (S, N, D)
        states = rows.unsqueeze(1) + bias.to(inner.dtype)  # (N, S, D)
        states += change.transpose(0, 1)  # in place: the result is contiguous
        return states.reshape(*hidden.shape[:-1], -1, self.hidden_size)

    def _weights_of(self, slots: Sequence[int] | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weights (S*F, D), (S, D, F) and biases (S*F,), (S, D) of both layers, for S slots."""
        inner_weight: Tensor = self.inner.weight
        inner_bias: Tensor = self.inner.bias
        weight: Tensor = self.outer_weight
        bias: Tensor = self.outer_bias
        width, size = self.hidden_size, self.inner_size
        count = self.num_slots if slots is None else len(slots)
        if slots is not None and list(slots) != list(range(count)):
            index = torch.tensor(list(slots), device=bias.device)
            inner_weight = inner_weight.view(-1, size, width)[index].flatten(0, 1)
            inner_bias = inner_bias.view(-1, size)[index].flatten()
            return inner_weight, inner_bias, weight.view(-1, width, size)[index], bias[index]
        if count < self.num_slots:  # views
            inner_weight, inner_bias = inner_weight[: count * size], inner_bias[: count * size]
            weight, bias = weight[: count * width], bias[:count]
        return inner_weight, inner_bias, weight.view(-1, width, size), bias


def check_heads(heads: Any, output_weight: Tensor) -> None:
    """Raise unless heads fit a target; sets the vocabulary of BlockwiseHeads that have none.

    Args:
        heads: with hidden_size and vocab_size, where they depend on these.
        output_weight: (V, D) of the target's output embedding.

    Raises:
        ValueError: another width or vocabulary.
    """
    name = type(heads).__name__
    target_vocab, target_width = output_weight.shape
    width = getattr(heads, "hidden_size", target_width)
    if width != target_width:
        raise ValueError(
            f"{name}: the heads take hidden states of width {width}, the target's output "
            f"embedding takes {target_width}; use heads trained on this target"
        )
    vocab_size = getattr(heads, "vocab_size", None) or target_vocab
    if isinstance(heads, BlockwiseHeads):
        heads.vocab_size = vocab_size
    check_same_ids(name, "heads", vocab_size, target_vocab)
