"""Reading and writing of the heads of Medusa checkpoints.

v0.1   config.json (medusa_num_heads, medusa_num_layers, base_model_name_or_path) and
       medusa_lm_head.pt (or .safetensors) with the heads; the target is elsewhere
v1.0   a `transformers` checkpoint of the target whose config.json has the two numbers too and
       whose weights include the heads as medusa_head.*

Pickles are read with `weights_only=True`: a file cannot run code.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from lattice_bpd._core import FormatError
from lattice_bpd.models.head_files import check_sizes, read_json, staged_folder
from lattice_bpd.models.medusa import (
    PREFIX,
    MedusaHeads,
    from_medusa_names,
    to_medusa_names,
)

_CONFIG_NAME = "config.json"
HEADS_ALONE = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
_WHOLE = ("model.safetensors", "pytorch_model.bin")
_ADVICE = "give the directory of a Medusa checkpoint"


class SharedBlocksWarning(UserWarning):
    """All blocks of a checkpoint's heads share one weight."""


def load_medusa_heads(directory: str | Path, *, num_slots: int | None = None) -> MedusaHeads:
    """The heads of a Medusa checkpoint of either version, on the CPU, in the file's dtype.

    Args:
        directory: the checkpoint.
        num_slots: heads to use, at most those of the checkpoint; None: medusa_num_heads. Some
            published configs name fewer heads than their file has.

    Raises:
        FormatError: files that are missing, cut, altered, or do not fit each other.

    Warns:
        SharedBlocksWarning: several blocks in each head, all with one weight. Medusa's own code
            once built heads as `[block] * n`: one block that runs n times, also in training. The
            logits are those of training, although n separate blocks may have been intended.
    """
    directory = Path(directory)
    config = read_config(directory)
    path, tensors = _read_tensors(directory)
    heads = from_medusa_names(
        tensors,
        path,
        config["medusa_num_heads"] if num_slots is None else num_slots,
        config["medusa_num_layers"],
    )
    for key, size in (("hidden_size", heads.hidden_size), ("vocab_size", heads.vocab_size)):
        if config.get(key, size) != size:
            raise FormatError(
                f"{path}: the heads have {key} {size}, {directory / _CONFIG_NAME} has "
                f"{config[key]}; expected the same; copy config and weights from one checkpoint"
            )
    if heads.num_layers > 1 and _blocks_are_equal(heads):
        warnings.warn(
            f"{path}: in each head all {heads.num_layers} blocks share one weight; expected "
            "blocks of their own; the heads work as they were trained, as one block that runs "
            f"{heads.num_layers} times; train again if that was not intended",
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
    """Write a Medusa checkpoint: v1.0 including the target if `base` is given, else v0.1.

    Files are written to a temporary folder and renamed, config.json last.

    Args:
        heads: the heads.
        directory: created if missing.
        base: the target of a v1.0 checkpoint.
        base_model_name_or_path: the target's name in config.json.

    Raises:
        OSError: the directory cannot be written.
    """
    directory = Path(directory)
    config: dict[str, Any] = {}
    with staged_folder(directory, last=_CONFIG_NAME) as folder:
        if base is None:
            torch.save(to_medusa_names(heads), folder / "medusa_lm_head.pt")
        else:
            base.save_pretrained(folder)
            config = json.loads((folder / _CONFIG_NAME).read_text(encoding="utf-8"))
            _add_heads(folder, to_medusa_names(heads, PREFIX))
        config |= {
            "medusa_num_heads": heads.num_slots,
            "medusa_num_layers": heads.num_layers,
            "base_model_name_or_path": base_model_name_or_path,
        }
        (folder / _CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


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


def _blocks_are_equal(heads: MedusaHeads) -> bool:
    """Whether the blocks of every head are equal."""
    return all(
        torch.equal(part, part[:1].expand_as(part))
        for part in (heads.block_weight, heads.block_bias)
    )


def is_medusa_checkpoint(directory: Path) -> bool:
    """Whether a folder is one, complete or not, by its config.json."""
    try:
        config = read_json(directory / _CONFIG_NAME, _ADVICE)
    except FormatError:
        return False
    return isinstance(config, dict) and "medusa_num_heads" in config


def read_config(directory: Path) -> dict[str, Any]:
    """config.json, which has medusa_num_heads and medusa_num_layers.

    Raises:
        FormatError: it is missing, cut, or of another kind of model.
    """
    path = directory / _CONFIG_NAME
    config = read_json(path, _ADVICE)
    check_sizes(path, config, {"medusa_num_heads": 1, "medusa_num_layers": 0}, _ADVICE)
    return dict(config)


def _read_tensors(directory: Path) -> tuple[Path, dict[str, Tensor]]:
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
    raise FormatError(f"{directory}: has none of {expected} (or an index of shards); {_ADVICE}")


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
    except Exception as error:  # altered pickles raise errors of any kind
        reason = str(error).strip().split("\n")[0]
        raise FormatError(
            f"{path}: cannot be read ({reason}); expected the tensors of a Medusa checkpoint, no "
            "code; copy the file again"
        ) from error
    if not isinstance(content, dict) or not all(map(torch.is_tensor, content.values())):
        raise FormatError(f"{path}: holds no named tensors; expected a state dict; {_ADVICE}")
    return {str(key): value for key, value in content.items() if str(key).startswith(prefix)}
