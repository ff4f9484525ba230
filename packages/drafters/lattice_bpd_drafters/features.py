"""What a BlockDrafter reads of its target: hidden states of several layers, concatenated."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lattice_bpd.models import forward


class TargetFeatures(NamedTuple):
    """One call of a target.

    Attributes:
        features: (B, T, n*D_target) float.
        logits: (B, T, V) float; those of the last position only where they were not requested and
            the target can leave them out.
    """

    features: Tensor
    logits: Tensor


@torch.no_grad()
def read_features(
    target: PreTrainedModel,
    token_ids: Tensor,
    hidden_layers: Sequence[int],
    *,
    with_logits: bool = False,
) -> TargetFeatures:
    """Features of whole texts, by one call of the target.

    Args:
        target: a causal LM.
        token_ids: (B, T) int64; padding on the right does not change what is before it.
        hidden_layers: one or more; see BlockDrafterConfig.
        with_logits: whether all logits are needed.

    Raises:
        ValueError: the target does not return the outputs of these layers.
    """
    model: Any = target
    options: dict[str, Any] = {"use_cache": False, "output_hidden_states": True}
    if not with_logits and "logits_to_keep" in inspect.signature(model.forward).parameters:
        options["logits_to_keep"] = 1
    output = model(input_ids=token_ids, **options)
    features = cast(Tensor, forward.read_features(model, output, hidden_layers))
    return TargetFeatures(features, output.logits)
