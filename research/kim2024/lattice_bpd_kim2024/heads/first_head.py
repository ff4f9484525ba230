"""Training of a network for head 1; see `lattice_bpd.models.heads`."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn
from transformers import PreTrainedModel

from lattice_bpd.models.first_head import FirstHead, HeadNetwork


def first_head_states(embedding: nn.Module, hidden: Tensor) -> Tensor:
    """(..., D) float: what head 1 projects onto the vocabulary, from hidden states (..., D)."""
    return cast(Tensor, embedding.network(hidden)) if isinstance(embedding, FirstHead) else hidden


def attach_first_head(base: PreTrainedModel, inner_size: int | None = None) -> None:
    """Give head 1 of a target a network of its own, unless it has one.

    Args:
        base: a causal LM of transformers; modified; its logits are the same until training.
        inner_size: F; D when None.

    Raises:
        TypeError: an output embedding with another forward than nn.Linear.
    """
    embedding: Any = base.get_output_embeddings()  # type: ignore[no-untyped-call]
    if not isinstance(embedding, FirstHead):
        width = int(embedding.weight.shape[1])
        network = HeadNetwork(width, width if inner_size is None else inner_size)
        base.set_output_embeddings(FirstHead(embedding, network))  # type: ignore[no-untyped-call]
