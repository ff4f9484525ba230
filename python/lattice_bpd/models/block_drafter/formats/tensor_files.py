"""Tensors of a checkpoint in safetensors files, one file or shards."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lattice_bpd._core import FormatError
from lattice_bpd.models.block_drafter.formats.config_reader import CONFIG_NAME
from lattice_bpd.models.head_files import read_json, staged_folder

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def read_tensors(directory: Path) -> tuple[Path, dict[str, Tensor]]:
    """The file (for shards: the index), and all tensors without the prefix `model.`, on the CPU.

    Raises:
        FormatError: no such file, a damaged one, or two tensors of one name.
    """
    index, path = directory / _INDEX, directory / _WEIGHTS
    if index.is_file():
        path, named = index, _read_shards(index)
    else:
        named = _read_file(path)
    tensors = {name.removeprefix("model."): tensor for name, tensor in named.items()}
    if len(tensors) < len(named):
        twice = sorted(name for name in tensors if {name, f"model.{name}"} <= set(named))
        raise FormatError(
            f"{path}: has {twice[0]} with and without the prefix 'model.'; expected one of them; "
            "save the checkpoint again"
        )
    return path, tensors


def check_tensors(
    path: Path, tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise FormatError unless the tensors are the expected ones; all but `d2t` hold floats.

    Args:
        path: of the file, for messages.
        tensors: what the file holds.
        expected: name -> shape.
    """
    advice = f"check that the file belongs to the {CONFIG_NAME} beside it"
    if missing := sorted(set(expected) - set(tensors)):
        raise FormatError(f"{path}: lacks {_some(missing)}; {advice}")
    if unknown := sorted(set(tensors) - set(expected)):
        raise FormatError(
            f"{path}: has {_some(unknown)}, which a drafter of this config does not have; {advice}"
        )
    for name, shape in expected.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape:
            raise FormatError(
                f"{path}: {name} has shape {tuple(tensor.shape)}; expected {shape}; {advice}"
            )
        if tensor.is_floating_point() == (name == "d2t") or tensor.dtype == torch.bool:
            kind = "integers" if name == "d2t" else "floats"
            raise FormatError(f"{path}: {name} holds {tensor.dtype}; expected {kind}; {advice}")


def write_checkpoint(
    directory: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write model.safetensors and config.json into a folder, which is made where it is missing.

    Both are written to a temporary folder and renamed, config.json last.

    Raises:
        OSError: the directory cannot be written.
    """
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with staged_folder(directory, last=CONFIG_NAME) as folder:
        save_file(stored, folder / _WEIGHTS, metadata={"format": "pt"})
        text = json.dumps(config, indent=2) + "\n"
        (folder / CONFIG_NAME).write_text(text, encoding="utf-8")
    (directory / _INDEX).unlink(missing_ok=True)  # of an earlier checkpoint of shards


def _read_file(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise FormatError(
            f"{path}: cannot be read ({error}); expected the tensors of a drafter; copy it again"
        ) from error


def _read_shards(index: Path) -> dict[str, Tensor]:
    content = read_json(index, "copy it again")
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict):
        raise FormatError(f"{index}: has no weight_map; expected an index of shards; copy it again")
    tensors: dict[str, Tensor] = {}
    for shard in sorted({Path(str(name)).name for name in weight_map.values()}):
        tensors |= _read_file(index.parent / shard)
    return tensors


def _some(names: Collection[str]) -> str:
    """The first few names."""
    first = list(names)[:3]
    return ", ".join(first) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
