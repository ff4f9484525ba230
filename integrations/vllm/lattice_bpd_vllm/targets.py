"""An engine's model as drafters read it; for any engine."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class TargetInfo(NamedTuple):
    """What a drafter reads of an engine's model.

    Attributes:
        compute_logits: states (N, D) -> logits (N, V), the output embedding with its scale, caps
            and gathering; None on a process that gets no logits.
        hidden_size: D.
        vocab_size: V.
        dtype: of its weights.
        device: of its weights.
        num_layers: for block drafters.
        embed_input_ids: token ids (N,) -> (N, D); for block drafters and heads with a draft
            vocabulary.
        output_weight: (V or more, D), of the output embedding; None: not in this process as a
            whole. For heads with a draft vocabulary.
    """

    compute_logits: Callable[[Tensor], Tensor | None]
    hidden_size: int
    vocab_size: int
    dtype: torch.dtype
    device: torch.device
    num_layers: int = 0
    embed_input_ids: Callable[[Tensor], Tensor] | None = None
    output_weight: Tensor | None = None

    def count_columns(self) -> int:
        """Columns of the logits; `vocab_size` on a process that gets no logits."""
        state = torch.zeros(1, self.hidden_size, device=self.device, dtype=self.dtype)
        with torch.inference_mode():
            logits = self.compute_logits(state)
        return self.vocab_size if logits is None else int(logits.shape[-1])


class TargetView:
    """A target as far as `attach` of block drafters and heads reads it."""

    def __init__(self, target: TargetInfo) -> None:
        text = SimpleNamespace(num_hidden_layers=target.num_layers, hidden_size=target.hidden_size)
        self.config = SimpleNamespace(get_text_config=lambda: text)
        shape = target.vocab_size, target.hidden_size
        weight = torch.empty(shape, dtype=target.dtype, device="meta")
        self._input = _Embedding(target.embed_input_ids, weight)
        if target.output_weight is not None:
            weight = target.output_weight[: target.vocab_size]
        self._output = _Embedding(target.compute_logits, weight)

    def get_input_embeddings(self) -> nn.Module:
        """Token ids (..) -> (.., D)."""
        return self._input

    def get_output_embeddings(self) -> nn.Module:
        """States (.., D) -> logits (.., V)."""
        return self._output


class _Embedding(nn.Module):
    """A function of the target on rows, with the shape and dtype of its weight."""

    def __init__(self, function: Any, weight: Tensor) -> None:
        super().__init__()
        self.function, self.weight = function, weight

    def forward(self, values: Tensor) -> Tensor:
        is_ids = not values.is_floating_point()
        shape = values.shape if is_ids else values.shape[:-1]
        rows: Tensor = self.function(values.reshape(-1) if is_ids else values.flatten(0, -2))
        return rows.view(*shape, -1)
