"""The network on head 1 that the paper's models have.

`FirstHead` replaces the target's output embedding, so the target's own `forward` and `generate`
compute head 1 with its network, and everything that decodes or verifies needs no change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from lattice_bpd._core import FormatError
from lattice_bpd.models.head_files import HeadFiles
from lattice_bpd.models.hooks import device_of, loaded
from lattice_bpd.models.linear import CpuLinear, linear

FIRST_HEAD_FILES = HeadFiles("first_head", {"hidden_size": 1, "inner_size": 1})


class HeadNetwork(nn.Module):
    """A feed-forward network with one hidden layer and a residual connection.

    It starts as the identity, since its outer layer is zero.

    Args:
        hidden_size: D.
        inner_size: F, the width of the hidden layer.
    """

    def __init__(self, hidden_size: int, inner_size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden_size, inner_size)
        self.outer = nn.Linear(inner_size, hidden_size)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., D) float from hidden states (..., D)."""
        return hidden + cast(Tensor, self.outer(F.silu(self.inner(hidden))))


class FirstHead(nn.Linear):
    """An output embedding that applies head 1's network first.

    Args:
        projection: the target's output embedding, (V, D); its weights are shared, not copied.
        network: head 1's.

    Raises:
        TypeError: an output embedding with another forward than nn.Linear.
    """

    def __init__(self, projection: nn.Module, network: HeadNetwork) -> None:
        nn.Module.__init__(self)  # nn.Linear's would allocate another (V, D) matrix
        if type(projection).forward not in (nn.Linear.forward, CpuLinear.forward):
            raise TypeError(
                f"FirstHead: the target's output embedding is a {type(projection).__name__}; "
                "expected nn.Linear; load the target without quantization or adapters"
            )
        layer = cast(nn.Linear, projection)
        self.out_features, self.in_features = layer.weight.shape
        self.weight, self.bias = layer.weight, layer.bias
        self.network = network.to(device=device_of(layer), dtype=layer.weight.dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., V) float logits of head 1 from hidden states (..., D)."""
        return linear(self.network(hidden), self.weight, self.bias)

    def project_states(self, states: Tensor) -> Tensor:
        """(..., V) float logits of head states (..., D), without head 1's network."""
        with loaded(self):
            return linear(states, self.weight, self.bias)


def load_first_head(base: PreTrainedModel, directory: Path) -> None:
    """Attach the network of a folder's first_head.json; of `lattice_bpd.target_parts`.

    Raises:
        FormatError: a file is missing, cut, altered, of another format version or width.
    """
    sizes = FIRST_HEAD_FILES.read_config(directory)
    network = FIRST_HEAD_FILES.read_heads(
        directory, lambda: HeadNetwork(sizes["hidden_size"], sizes["inner_size"])
    )
    embedding: Any = base.get_output_embeddings()  # type: ignore[no-untyped-call]
    if sizes["hidden_size"] != embedding.weight.shape[1]:
        raise FormatError(
            f"{directory / FIRST_HEAD_FILES.config_name}: hidden_size is {sizes['hidden_size']}, "
            f"the target's is {embedding.weight.shape[1]}; expected the files of one model; save "
            "or train it again"
        )
    base.set_output_embeddings(FirstHead(embedding, network))  # type: ignore[no-untyped-call]


def project_states(embedding: nn.Module, states: Tensor) -> Tensor:
    """(..., V) float logits of head states (..., D), without head 1's network."""
    return cast(Tensor, getattr(embedding, "project_states", embedding)(states))


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
