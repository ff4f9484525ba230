"""Medusa heads: residual blocks on a hidden state, and an output projection per head.

    head i:  x -> x + SiLU(W_1 x + b_1) -> .. -> x + SiLU(W_L x + b_L) -> U_i x     (V logits)

Head i (from 0) predicts slot i of the lattice: the token i+2 positions after the last input token
(Cai et al. 2024, section 2.1.1). Medusa's names of the tensors, after "medusa_head." in v1.0:

    {i}.{j}.linear.weight  [D,D]    block j < L of head i
    {i}.{j}.linear.bias    [D]
    {i}.{L}.weight         [V,D]    projection of head i
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from lattice_bpd._core import FormatError
from lattice_bpd.models.head_files import HeadFiles, SavedHeads

PREFIX = "medusa_head."
_NAME = re.compile(r"(?:medusa_head\.)?(\d+)\.(\d+)\.(?:linear\.(weight|bias)|weight)")
_SIZES = ("hidden_size", "vocab_size", "num_slots", "num_layers")
MEDUSA_FILES = HeadFiles("medusa_heads", {**dict.fromkeys(_SIZES, 1), "num_layers": 0})


class MedusaHeads(SavedHeads):
    """H heads evaluated together; a head source for `BlockwiseLM`.

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
        weight = target.get_output_embeddings().weight  # type: ignore[no-untyped-call]
        heads = cls(weight.shape[1], weight.shape[0], num_slots, num_layers)
        with torch.no_grad():
            heads.output_weight.copy_(weight.detach().expand_as(heads.output_weight))
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


def to_medusa_names(heads: MedusaHeads, prefix: str = "") -> dict[str, Tensor]:
    """The heads' tensors on the CPU, in separate memory, under Medusa's names."""
    return {f"{prefix}{name}": part.detach().cpu().clone() for name, part in _named_parts(heads)}


def from_medusa_names(
    tensors: Mapping[str, Tensor], path: Path, num_slots: int, num_layers: int
) -> MedusaHeads:
    """Heads from tensors under Medusa's names; further heads of the file are ignored.

    Args:
        tensors: name -> tensor.
        path: their file, for messages.
        num_slots: heads to use.
        num_layers: blocks of each, as the config has it.

    Raises:
        FormatError: foreign names, other counts, or shapes that do not fit together.
    """
    _check_names(tensors, path, num_slots, num_layers)
    plain = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    first = plain[f"0.{num_layers}.weight"]
    if first.ndim != 2 or not first.is_floating_point():
        raise FormatError(
            f"{path}: 0.{num_layers}.weight has shape {tuple(first.shape)}, expected (V, D) of "
            f"floats; found {first.dtype}; copy the checkpoint again"
        )
    vocab_size, hidden_size = first.shape
    with torch.device("meta"):
        heads = MedusaHeads(hidden_size, vocab_size, num_slots, num_layers)
    heads = heads.to(first.dtype).to_empty(device="cpu")
    with torch.no_grad():
        for name, part in _named_parts(heads):
            tensor = plain.get(name)
            if tensor is None:
                raise FormatError(
                    f"{path}: has no tensor {name}; expected {num_layers} blocks and a projection "
                    f"for each of {num_slots} heads; copy the checkpoint again"
                )
            if tensor.shape != part.shape:
                raise FormatError(
                    f"{path}: {name} has shape {tuple(tensor.shape)}, expected "
                    f"{tuple(part.shape)} as 0.{num_layers}.weight [{vocab_size}, {hidden_size}] "
                    "has it; copy the checkpoint again"
                )
            part.copy_(tensor)
    return heads


def _named_parts(heads: MedusaHeads) -> Iterator[tuple[str, Tensor]]:
    """Medusa's name of each part of the heads' parameters."""
    for head in range(heads.num_slots):
        for layer in range(heads.num_layers):
            yield f"{head}.{layer}.linear.weight", heads.block_weight[layer, head]
            yield f"{head}.{layer}.linear.bias", heads.block_bias[layer, head]
        yield f"{head}.{heads.num_layers}.weight", heads.output_weight[head]


def _check_names(
    tensors: Mapping[str, Tensor], path: Path, num_slots: int, num_layers: int
) -> None:
    """Raise unless the names are Medusa's, with enough heads of so many blocks."""
    num_blocks = {}
    for name in tensors:
        match = _NAME.fullmatch(name)
        if match is None:
            raise FormatError(
                f"{path}: holds a tensor {name!r}; expected Medusa heads, whose names are like "
                "0.0.linear.weight; give the file of a Medusa checkpoint"
            )
        if match[3] is None:  # the projection, which follows the blocks
            num_blocks[int(match[1])] = int(match[2])
    if sorted(num_blocks) != list(range(len(num_blocks))) or not num_blocks:
        raise FormatError(
            f"{path}: has projections of heads {sorted(num_blocks)}; expected heads 0, 1, .. "
            "without a gap; copy the checkpoint again"
        )
    if len(num_blocks) < num_slots:
        raise FormatError(
            f"{path}: has {len(num_blocks)} heads; expected {num_slots} (medusa_num_heads, or the "
            f"num_slots argument); give num_slots={len(num_blocks)}, or fix config.json"
        )
    depths = {num_blocks[head] for head in range(num_slots)}
    if depths != {num_layers}:
        raise FormatError(
            f"{path}: its heads have {sorted(depths)} blocks; config.json has medusa_num_layers "
            f"{num_layers}; expected the same; fix config.json, or copy the checkpoint again"
        )
    if num_slots * num_layers > len(tensors):  # before memory is allocated for them
        raise FormatError(
            f"{path}: has {len(tensors)} tensors; expected {2 * num_layers + 1} for each of "
            f"{num_slots} heads; copy the checkpoint again"
        )
