"""The interface of target models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.models.forward import LMOutput

TargetOutput = LMOutput


class HeadsInCall(NamedTuple):
    """Draft heads that a recorded call of the target computes too.

    Attributes:
        read: the candidates after (N, D) hidden states and the (N,) int64 tokens selected from
            them; independent slots with log probabilities.
        tensors: that it reads, on the target's device.
    """

    read: Callable[[Tensor, Tensor], LatticeInput]
    tensors: list[Tensor]


class TargetModel(Protocol):
    """The interface that verification uses; `CausalLMTarget` wraps any causal LM.

    Attributes:
        device: of the inputs.
        dtype: of the attention mask.
        sliding_window: tokens in the window of sliding layers, the current one included; None
            without one.
    """

    device: torch.device
    dtype: torch.dtype
    sliding_window: int | None

    def __call__(
        self,
        input_ids: Tensor,
        cache: Any,
        *,
        attention_mask: Tensor | None = None,
        windowed_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> TargetOutput:
        """Run the target over (B, T) new tokens after the P of the cache, and append them to it.

        attention_mask is (B, P + T) int64, or (B, 1, T, P + T) float that is added to the attention
        scores; windowed_mask is the same for layers with a sliding window.
        """
        ...

    def refuses_tree(self) -> str | None:
        """Why the target cannot use tree attention (four-dimensional masks), or None."""
        ...
