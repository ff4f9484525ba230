"""A drafter as its files hold it: config and tensors, by the names of the z-lab format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lattice_bpd._core import FormatError
from lattice_bpd.models.block_drafter.config import BlockDrafterConfig
from lattice_bpd.models.block_drafter.formats.config_reader import CONFIG_NAME
from lattice_bpd.models.block_drafter.formats.scorer_tensors import (
    convolution_shapes,
    named_parts,
    scorer_shapes,
)
from lattice_bpd.models.block_drafter.formats.tensor_files import check_tensors, read_tensors
from lattice_bpd.models.block_drafter.scorer_config import LiLiCorrConfig

_OWN = {
    "embed_tokens.weight": "has_own_embedding",
    "lm_head.weight": "has_own_output",
    "mask_embedding": "has_mask_embedding",
}


@dataclass(frozen=True)
class Checkpoint:
    """What a format's `read` returns.

    Attributes:
        config: sizes and conventions.
        tensors: the state dict of `BlockDrafter(config)`, on the CPU, in the file's dtype.
    """

    config: BlockDrafterConfig
    tensors: dict[str, Tensor]


def read_checkpoint_tensors(
    directory: Path,
    options: Mapping[str, Any],
    *,
    names: Mapping[str, str] | None = None,
    unused: frozenset[str] = frozenset({"t2d"}),
) -> Checkpoint:
    """Read the tensors, complete the config by what only they tell, and check both.

    Args:
        directory: of the checkpoint.
        options: fields of BlockDrafterConfig, without has_own_embedding and the like, which are
            read off the tensors.
        names: names in the file -> names of the z-lab format, where they differ.
        unused: tensors that no drafter needs.

    Raises:
        FormatError: files that are damaged, or do not fit each other.
    """
    path, stored = read_tensors(directory)
    renamed = {named_parts((names or {}).get(name, name)): value for name, value in stored.items()}
    if len(renamed) < len(stored):
        raise FormatError(
            f"{path}: has two tensors that are {_first_twin(stored)} in other spellings; expected "
            "one of them; save the checkpoint again"
        )
    tensors = {name: value for name, value in renamed.items() if name not in unused}
    fields = dict(options)
    fields |= {field: name in tensors for name, field in _OWN.items()}
    if "mask_embedding" in tensors:
        tensors["mask_embedding"] = tensors["mask_embedding"].flatten()
    if fields.get("draft_vocab_size") == fields["vocab_size"]:
        fields["draft_vocab_size"] = None
        tensors.pop("d2t", None)
    config = BlockDrafterConfig(**fields)
    try:
        config.check()
    except ValueError as error:
        raise FormatError(
            f"{directory / CONFIG_NAME}: {error}; copy the checkpoint again"
        ) from None
    count = config.num_layers
    if isinstance(config.scorer, LiLiCorrConfig):
        count = max(count, config.scorer.num_layers)
    if count > len(tensors):  # before names of that many layers are listed
        raise FormatError(
            f"{path}: has {len(tensors)} tensors; expected those of {count} layers, as "
            f"{CONFIG_NAME} says; copy the checkpoint again"
        )
    check_tensors(path, tensors, tensor_shapes(config))
    _check_d2t(path, config, tensors.get("d2t"))
    return Checkpoint(config, tensors)


def tensor_shapes(config: BlockDrafterConfig) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the state dict of `BlockDrafter(config)`."""
    size, inner, width = config.hidden_size, config.intermediate_size, config.head_dim
    heads, kv_heads = config.num_heads * width, config.num_kv_heads * width
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (size, config.feature_size), "hidden_norm.weight": (size,),
        "norm.weight": (size,),
    }  # fmt: skip
    for layer in range(config.num_layers):
        parts = {
            "input_layernorm.weight": (size,), "post_attention_layernorm.weight": (size,),
            "self_attn.q_proj.weight": (heads, size), "self_attn.k_proj.weight": (kv_heads, size),
            "self_attn.v_proj.weight": (kv_heads, size), "self_attn.o_proj.weight": (size, heads),
            "self_attn.q_norm.weight": (width,), "self_attn.k_norm.weight": (width,),
            "mlp.gate_proj.weight": (inner, size), "mlp.up_proj.weight": (inner, size),
            "mlp.down_proj.weight": (size, inner), **convolution_shapes(config),
        }  # fmt: skip
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in parts.items()}
    rows = config.draft_vocab_size or config.vocab_size or 0
    if config.has_own_embedding:
        shapes["embed_tokens.weight"] = (config.vocab_size or 0, size)
    if config.has_own_output:
        shapes["lm_head.weight"] = (rows, size)
    if config.has_mask_embedding:
        shapes["mask_embedding"] = (size,)
    if config.draft_vocab_size is not None:
        shapes["d2t"] = (rows,)
    return shapes | scorer_shapes(config)


def _first_twin(names: Iterable[str]) -> str:
    """The first name that two tensors have once they are spelled alike."""
    seen: set[str] = set()
    for name in map(named_parts, names):
        if name in seen:
            return name
        seen.add(name)
    return "equal"


def _check_d2t(path: Path, config: BlockDrafterConfig, d2t: Tensor | None) -> None:
    """Raise FormatError if a draft id's target id is outside of the vocabulary."""
    if d2t is None or config.vocab_size is None:
        return
    targets = d2t + torch.arange(len(d2t))
    if targets.min() < 0 or targets.max() >= config.vocab_size:
        raise FormatError(
            f"{path}: d2t leads to target ids {int(targets.min())}..{int(targets.max())}; "
            f"expected 0..{config.vocab_size - 1} (target id = draft id + d2t[draft id])"
        )
