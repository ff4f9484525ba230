"""Reading the files of Medusa checkpoints; `medusa_checkpoint` says what they are.

Pickles are read with `weights_only=True`: a file cannot run code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from lattice_bpd._core import FormatError
from lattice_bpd.models.medusa_tensors import PREFIX

CONFIG_NAME = "config.json"
HEADS_ALONE = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
_WHOLE = ("model.safetensors", "pytorch_model.bin")
_CURE = "give the directory of a Medusa checkpoint"


def read_medusa_config(directory: Path) -> dict[str, Any]:
    """config.json, which has medusa_num_heads and medusa_num_layers.

    Raises:
        FormatError: it is missing, cut, or of another kind of model.
    """
    path = directory / CONFIG_NAME
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"{path}: cannot be read ({error}); {_CURE}") from error
    for key, least in (("medusa_num_heads", 1), ("medusa_num_layers", 0)):
        value = config.get(key) if isinstance(config, dict) else None
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise FormatError(
                f"{path}: {key} is {value!r}, expected an integer of {least} or more; {_CURE}"
            )
    return dict(config)


def read_medusa_tensors(directory: Path) -> tuple[Path, dict[str, Tensor]]:
    """The file (for shards: the index) that holds the heads, and their tensors.

    Raises:
        FormatError: no such file, a cut one, or one that would run code.
    """
    for name in HEADS_ALONE:
        if (path := directory / name).is_file():
            return path, _read_file(path, "")
    for name in _WHOLE:
        index = directory / f"{name}.index.json"
        if index.is_file():
            return index, _read_shards(index)
        if (path := directory / name).is_file():
            return path, _read_file(path, PREFIX)
    expected = ", ".join((*HEADS_ALONE, *_WHOLE))
    raise FormatError(f"{directory}: has none of {expected} (or an index of shards); {_CURE}")


def _read_shards(index: Path) -> dict[str, Tensor]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        shards = {file for name, file in weight_map.items() if name.startswith(PREFIX)}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            f"{index}: is no index of shards ({error!r}); expected a weight_map; copy it again"
        ) from error
    tensors: dict[str, Tensor] = {}
    for shard in sorted(shards):
        tensors |= _read_file(index.parent / Path(str(shard)).name, PREFIX)
    return tensors


def _read_file(path: Path, prefix: str) -> dict[str, Tensor]:
    """The tensors of a file whose names begin with the prefix."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                names = [key for key in file.keys() if key.startswith(prefix)]  # noqa: SIM118
                return {key: file.get_tensor(key) for key in names}
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of pickles that were altered, any
        reason = str(error).strip().split("\n")[0]
        raise FormatError(
            f"{path}: cannot be read ({reason}); expected the tensors of a Medusa checkpoint, no "
            "code; copy the file again"
        ) from error
    if not isinstance(content, dict) or not all(map(torch.is_tensor, content.values())):
        raise FormatError(f"{path}: holds no named tensors; expected a state dict; {_CURE}")
    return {str(key): value for key, value in content.items() if str(key).startswith(prefix)}
