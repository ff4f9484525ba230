"""Medusa's names for the tensors of its heads, and back.

    {i}.{j}.linear.weight  [D,D]    block j < L of head i
    {i}.{j}.linear.bias    [D]
    {i}.{L}.weight         [V,D]    projection of head i

v1.0 puts "medusa_head." before each name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from lattice_bpd._core import FormatError
from lattice_bpd.models.medusa import MedusaHeads

PREFIX = "medusa_head."
_NAME = re.compile(r"(?:medusa_head\.)?(\d+)\.(\d+)\.(?:linear\.(weight|bias)|weight)")


def to_medusa_names(heads: MedusaHeads, prefix: str = "") -> dict[str, Tensor]:
    """The heads' tensors on the CPU, each in memory of its own, under Medusa's names."""
    found = {}
    for head in range(heads.num_slots):
        for layer in range(heads.num_layers):
            name = f"{prefix}{head}.{layer}.linear"
            found[f"{name}.weight"] = heads.block_weight[layer, head]
            found[f"{name}.bias"] = heads.block_bias[layer, head]
        found[f"{prefix}{head}.{heads.num_layers}.weight"] = heads.output_weight[head]
    return {name: tensor.detach().cpu().clone() for name, tensor in found.items()}


def from_medusa_names(
    tensors: Mapping[str, Tensor], path: Path, num_slots: int, num_layers: int
) -> MedusaHeads:
    """Heads from tensors under Medusa's names; further heads of the file are left out.

    Args:
        tensors: name -> tensor.
        path: their file, for messages.
        num_slots: heads to take.
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
        for name, place in _places(heads):
            tensor = plain.get(name)
            if tensor is None:
                raise FormatError(
                    f"{path}: has no tensor {name}; expected {num_layers} blocks and a projection "
                    f"for each of {num_slots} heads; copy the checkpoint again"
                )
            if tensor.shape != place.shape:
                raise FormatError(
                    f"{path}: {name} has shape {tuple(tensor.shape)}, expected "
                    f"{tuple(place.shape)} as 0.{num_layers}.weight [{vocab_size}, {hidden_size}] "
                    "has it; copy the checkpoint again"
                )
            place.copy_(tensor)
    return heads


def _places(heads: MedusaHeads) -> Iterator[tuple[str, Tensor]]:
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
    places = {}
    for name in tensors:
        match = _NAME.fullmatch(name)
        if match is None:
            raise FormatError(
                f"{path}: holds a tensor {name!r}; expected Medusa heads, whose names are like "
                "0.0.linear.weight; give the file of a Medusa checkpoint"
            )
        head, layer, part = int(match[1]), int(match[2]), match[3]
        if part is None:
            places[head] = layer
    if sorted(places) != list(range(len(places))) or not places:
        raise FormatError(
            f"{path}: has projections of heads {sorted(places)}; expected heads 0, 1, .. without a "
            "gap; copy the checkpoint again"
        )
    if len(places) < num_slots:
        raise FormatError(
            f"{path}: has {len(places)} heads; expected {num_slots} (medusa_num_heads, or the "
            f"num_slots asked for); give num_slots={len(places)}, or mend config.json"
        )
    depths = {places[head] for head in range(num_slots)}
    if depths != {num_layers}:
        raise FormatError(
            f"{path}: its heads have {sorted(depths)} blocks; config.json has medusa_num_layers "
            f"{num_layers}; expected the same; mend config.json, or copy the checkpoint again"
        )
    if num_slots * num_layers > len(tensors):  # before memory is taken for so many
        raise FormatError(
            f"{path}: has {len(tensors)} tensors; expected {2 * num_layers + 1} for each of "
            f"{num_slots} heads; copy the checkpoint again"
        )
