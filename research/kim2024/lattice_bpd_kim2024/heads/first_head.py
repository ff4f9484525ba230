"""Training and writing of a network for head 1; see `lattice_bpd.models.first_head`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lattice_bpd.models.first_head import FIRST_HEAD_FILES, FirstHead, HeadNetwork


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


def save_first_head(base: PreTrainedModel, directory: Path) -> None:
    """Write first_head.safetensors and first_head.json, or remove them if head 1 has no network.

    Raises:
        OSError: the directory cannot be written.
    """
    embedding: Any = base.get_output_embeddings()  # type: ignore[no-untyped-call]
    if isinstance(embedding, FirstHead):
        inner: nn.Linear = embedding.network.inner
        sizes = {"hidden_size": inner.in_features, "inner_size": inner.out_features}
        FIRST_HEAD_FILES.write(directory, sizes, embedding.network)
        return
    for stale in (FIRST_HEAD_FILES.config_name, FIRST_HEAD_FILES.weights_name):
        (directory / stale).unlink(missing_ok=True)


@contextmanager
def plain_output_embedding(base: PreTrainedModel) -> Iterator[None]:
    """Inside, the target has its output embedding without head 1's network, for writing it."""
    embedding: Any = base.get_output_embeddings()  # type: ignore[no-untyped-call]
    if not isinstance(embedding, FirstHead):
        yield
        return
    with torch.device("meta"):
        plain = nn.Linear(embedding.in_features, embedding.out_features)
    plain.weight, plain.bias = embedding.weight, embedding.bias
    base.set_output_embeddings(plain)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        base.set_output_embeddings(embedding)  # type: ignore[no-untyped-call]
