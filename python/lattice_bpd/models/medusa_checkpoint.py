"""Medusa checkpoints, read and written.

v0.1   config.json (medusa_num_heads, medusa_num_layers, base_model_name_or_path) and
medusa_lm_head.pt (or .safetensors) with the heads alone; the target is elsewhere
v1.0   a `transformers` checkpoint of the target whose config.json has the two numbers too and
whose weights hold the heads as medusa_head.*
"""

from __future__ import annotations

import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from lattice_bpd._core import FormatError
from lattice_bpd.models.blockwise import BlockwiseLM
from lattice_bpd.models.checkpoint import load_target
from lattice_bpd.models.medusa import MedusaHeads
from lattice_bpd.models.medusa_files import (
    CONFIG_NAME,
    HEADS_ALONE,
    read_medusa_config,
    read_medusa_tensors,
)
from lattice_bpd.models.medusa_tensors import PREFIX, from_medusa_names, to_medusa_names


class SharedBlocksWarning(UserWarning):
    """All blocks of a checkpoint's heads share one weight."""


def load_medusa(
    directory: str | Path,
    base: PreTrainedModel | None = None,
    *,
    num_slots: int | None = None,
    **options: Any,
) -> BlockwiseLM:
    """A target with Medusa heads, ready for decoding.

    Args:
        directory: a Medusa checkpoint.
        base: the target; None: read from the directory (v1.0), or from the local folder that
            base_model_name_or_path names (v0.1). Nothing is downloaded.
        num_slots: heads to use, at most those of the checkpoint; None: medusa_num_heads.
        options: handed to `AutoModelForCausalLM.from_pretrained`, such as dtype.

    Returns:
        BlockwiseLM in evaluation mode.

    Raises:
        FormatError: files that are missing, cut, altered, or do not fit each other.
        ValueError: no target, or heads of another hidden size or vocabulary than the target's.

    Warns:
        SharedBlocksWarning: see `load_medusa_heads`.
    """
    directory = Path(directory)
    heads = load_medusa_heads(directory, num_slots=num_slots)
    if base is None:
        base = load_target(_target_folder(directory), **options)
    model = BlockwiseLM(base, heads=heads)
    model.eval()
    return model


def load_medusa_heads(directory: str | Path, *, num_slots: int | None = None) -> MedusaHeads:
    """The heads of a Medusa checkpoint of either version, on the CPU, in the file's dtype.

    Args:
        directory: the checkpoint.
        num_slots: heads to take, at most those of the checkpoint; None: medusa_num_heads. Some
            published configs name fewer heads than their file has.

    Raises:
        FormatError: files that are missing, cut, altered, or do not fit each other.

    Warns:
        SharedBlocksWarning: several blocks in each head, all with one weight. Medusa's own code
            once built heads as `[block] * n`: one block that runs n times, also in training. The
            logits are right; what its author meant may have been n blocks.
    """
    directory = Path(directory)
    config = read_medusa_config(directory)
    path, tensors = read_medusa_tensors(directory)
    heads = from_medusa_names(
        tensors,
        path,
        config["medusa_num_heads"] if num_slots is None else num_slots,
        config["medusa_num_layers"],
    )
    for key, found in (("hidden_size", heads.hidden_size), ("vocab_size", heads.vocab_size)):
        if config.get(key, found) != found:
            raise FormatError(
                f"{path}: the heads have {key} {found}, {directory / CONFIG_NAME} has "
                f"{config[key]}; expected the same; copy config and weights from one checkpoint"
            )
    if heads.num_layers > 1 and _blocks_are_equal(heads):
        warnings.warn(
            f"{path}: in each head all {heads.num_layers} blocks share one weight; expected "
            "blocks of their own; the heads work as they were trained, as one block that runs "
            f"{heads.num_layers} times; train again if that was not meant",
            SharedBlocksWarning,
            stacklevel=2,
        )
    return heads


def save_medusa(
    heads: MedusaHeads,
    directory: str | Path,
    *,
    base: PreTrainedModel | None = None,
    base_model_name_or_path: str = "",
) -> None:
    """Write a Medusa checkpoint: v1.0 with the target in it where `base` is given, else v0.1.

    Files are written to a temporary folder and renamed, config.json last.

    Args:
        heads: the heads.
        directory: made where it is missing.
        base: the target of a v1.0 checkpoint.
        base_model_name_or_path: what config.json calls the target.

    Raises:
        OSError: the directory cannot be written.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=directory, prefix=".saving-") as name:
        temporary = Path(name)
        if base is None:
            torch.save(to_medusa_names(heads), temporary / "medusa_lm_head.pt")
        else:
            base.save_pretrained(temporary)
            config = json.loads((temporary / CONFIG_NAME).read_text(encoding="utf-8"))
            _add_heads(temporary, to_medusa_names(heads, PREFIX))
        config |= {
            "medusa_num_heads": heads.num_slots,
            "medusa_num_layers": heads.num_layers,
            "base_model_name_or_path": base_model_name_or_path,
        }
        (temporary / CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        for path in sorted(temporary.iterdir(), key=lambda path: path.name == CONFIG_NAME):
            path.replace(directory / path.name)


def _add_heads(directory: Path, tensors: dict[str, Tensor]) -> None:
    """Put the heads into a checkpoint of one file, or beside the shards of a large one."""
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        path = directory / "model.safetensors"
        save_file({**load_file(path), **tensors}, path, metadata={"format": "pt"})
        return
    save_file(tensors, directory / "model-medusa.safetensors", metadata={"format": "pt"})
    content = json.loads(index.read_text(encoding="utf-8"))
    content["weight_map"] |= dict.fromkeys(tensors, "model-medusa.safetensors")
    index.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _target_folder(directory: Path) -> Path:
    """Where the target of a checkpoint lies on this machine."""
    if not any((directory / name).is_file() for name in HEADS_ALONE):
        return directory
    name = read_medusa_config(directory).get("base_model_name_or_path")
    if isinstance(name, str) and name and Path(name).is_dir():
        return Path(name)
    raise ValueError(
        f"load_medusa: {directory} holds heads alone, for the target {name!r}, which is no folder "
        "of this machine; load that model and give it as base="
    )


def _blocks_are_equal(heads: MedusaHeads) -> bool:
    """Whether every head repeats one block."""
    return all(
        torch.equal(part, part[:1].expand_as(part))
        for part in (heads.block_weight, heads.block_bias)
    )
