"""Checkpoints of Medusa heads, L blocks and a projection per head, and their folder format.

Medusa's names of the tensors, after "medusa_head." in v1.0:

    {i}.{j}.linear.weight  [D,D]    block j < L of head i
    {i}.{j}.linear.bias    [D]
    {i}.{L}.weight         [V,D]    projection of head i

Versions:

    v0.1   config.json (medusa_num_heads, medusa_num_layers, base_model_name_or_path) and
           medusa_lm_head.pt (or .safetensors) with the heads; the target is elsewhere
    v1.0   a `transformers` checkpoint of the target whose config.json has the two numbers too and
           whose weights include the heads as medusa_head.*

Pickles are read with `weights_only=True`: a file cannot run code.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from lattice_bpd._core import FormatError
from lattice_bpd.models.checkpoint import HeadFormat, find_own_loader, load_target
from lattice_bpd.models.head_files import check_sizes, read_json, staged_folder
from lattice_bpd.models.heads import check_heads
from lattice_bpd.models.hooks import loaded
from lattice_bpd_drafters.medusa_heads import MEDUSA_FILES, MedusaHeads

PREFIX = "medusa_head."
_NAME = re.compile(r"(?:medusa_head\.)?(\d+)\.(\d+)\.(?:linear\.(weight|bias)|weight)")
_CONFIG_NAME = "config.json"
HEADS_ALONE = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
_WHOLE = ("model.safetensors", "pytorch_model.bin")
_ADVICE = "give the directory of a Medusa checkpoint"


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


def load_medusa(
    directory: str | Path,
    base: PreTrainedModel | None = None,
    *,
    num_slots: int | None = None,
    **options: Any,
) -> tuple[PreTrainedModel, MedusaHeads]:
    """A target and its Medusa heads: `generate(target, .., heads=heads)`.

    Args:
        directory: a Medusa checkpoint.
        base: the target; None: read from the directory (v1.0), or from the local folder that
            base_model_name_or_path names (v0.1). Nothing is downloaded.
        num_slots: heads to use, at most those of the checkpoint; None: medusa_num_heads.
        options: passed to `AutoModelForCausalLM.from_pretrained`, such as dtype.

    Returns:
        Both in evaluation mode.

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
    output: Any = base.get_output_embeddings()  # type: ignore[no-untyped-call]
    with loaded(output):
        check_heads(heads, output.weight)
    return base.eval(), heads.eval()  # type: ignore[no-untyped-call]


def _target_folder(directory: Path) -> Path:
    """The local folder of a checkpoint's target."""
    if not any((directory / name).is_file() for name in HEADS_ALONE):
        return directory
    name = read_config(directory).get("base_model_name_or_path")
    if isinstance(name, str) and name and Path(name).is_dir():
        return Path(name)
    raise ValueError(
        f"load_medusa: {directory} has heads only, for the target {name!r}, which is not a local "
        "folder; load that model and give it as base="
    )


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


class MedusaFormat(HeadFormat):
    """MedusaHeads beside their target, or a checkpoint of either version."""

    name, kind = MEDUSA_FILES.config_name, MedusaHeads

    def find_loader(self, directory: Path) -> Callable[[Path], MedusaHeads] | None:
        """See HeadFormat."""
        if (directory / self.name).is_file():
            return MedusaHeads.from_pretrained
        is_medusa = is_medusa_checkpoint(directory) and find_own_loader(directory) is None
        return load_medusa_heads if is_medusa else None

    def write(self, heads: Any, directory: Path) -> Any:
        """See HeadFormat."""
        if not isinstance(heads, MedusaHeads):
            for stale in (MEDUSA_FILES.config_name, MEDUSA_FILES.weights_name):
                (directory / stale).unlink(missing_ok=True)
        return heads

    def owns_config(self, directory: Path) -> bool:
        """See HeadFormat."""
        return any((directory / name).is_file() for name in HEADS_ALONE)


MEDUSA = MedusaFormat()
