"""Strict reading of a checkpoint's config.json and tensors, in one file or in shards.

Drafters of formats that this library cannot load are named, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lattice_bpd._core import FormatError
from lattice_bpd.models.head_files import read_json, staged_folder

SUPPORTED = (
    "DFlash, DFlash2, LiLiCorr and DSpark drafters of z-lab and SpecForge (architectures "
    "['DFlashDraftModel'], 'DFlash2DraftModel', 'LiLiCorrDraftModel'), DSpark of DeepSpec "
    "('Qwen3DSparkModel'), DFlash and DSpark of speculators (speculators_model_type 'dflash', "
    "'dspark') and DFlash of transformers (model_type 'muse_glimmer_assistant')"
)

_PREFIXES = "its logits depend on whole prefixes of the draft"
_REASONS = {
    "dcoco": ("DCOCO", "the formula of its scores has not been published"),
    "domino": ("Domino", _PREFIXES),
    "xpress": ("xPress", "its logits depend on the whole draft"),
}


def refuse_other_drafters(path: Path, content: Mapping[str, Any]) -> None:
    """Raise FormatError if a config.json names a drafter of another family.

    Args:
        path: of the file, for messages.
        content: its object.
    """
    inner = content.get("dflash_config")
    inner = inner if isinstance(inner, Mapping) else {}
    fields = {
        "architectures": content.get("architectures"),
        "speculators_model_type": content.get("speculators_model_type"),
        "model_type": content.get("model_type"),
        "dflash_config.projector_type": inner.get("projector_type"),
    }
    for key, value in fields.items():
        for fragment, (name, reason) in _REASONS.items():
            if fragment in str(value).lower():
                raise FormatError(
                    f"{path}: is a {name} drafter ({key}); {reason}, which is not supported yet; "
                    f"supported are {SUPPORTED}"
                )


CONFIG_NAME = "config.json"
REQUIRED: Any = object()
"""The default of an option without default."""

# Options of transformers that change nothing here.
_UNUSED = frozenset({
    "_name_or_path", "architectures", "attention_dropout", "auto_map", "bos_token_id",
    "chunk_size_feed_forward", "dtype", "eos_token_id", "id2label", "initializer_range",
    "is_encoder_decoder", "label2id", "max_position_embeddings", "max_window_layers",
    "model_type", "output_attentions", "output_hidden_states", "pad_token_id", "problem_type",
    "return_dict", "tie_word_embeddings", "torch_dtype", "transformers_version", "use_cache",
})  # fmt: skip


def read_config_json(directory: Path) -> dict[str, Any]:
    """The object in a checkpoint's config.json.

    Raises:
        FormatError: the file is missing, damaged, or holds no object.
    """
    path = directory / CONFIG_NAME
    content = read_json(path, "give the directory of a drafter's checkpoint")
    if not isinstance(content, dict):
        raise FormatError(
            f"{path}: holds a {type(content).__name__}; expected an object; copy the file again"
        )
    return content


class ConfigReader:
    """Typed access to the options of a JSON object; options that were not read are errors.

    Args:
        path: of the file, for messages.
        content: the object.
        prefix: of the names in messages, such as "dflash_config.".
    """

    def __init__(self, path: Path, content: Any, prefix: str = "") -> None:
        self.path, self.prefix = path, prefix
        if not isinstance(content, Mapping):
            self.fail(prefix.rstrip("."), content, "an object")
        self.content: Mapping[str, Any] = content
        self._known: set[str] = set(_UNUSED)

    def fail(self, key: str, value: Any, expected: str) -> NoReturn:
        """Raise FormatError for one option."""
        raise FormatError(
            f"{self.path}: {self.prefix if key else ''}{key or self.prefix} is {value!r}; expected "
            f"{expected}; this checkpoint cannot be loaded"
        )

    def has(self, key: str) -> bool:
        """Whether an option is set, to anything but null."""
        return self.content.get(key) is not None

    def get(self, key: str, default: Any = REQUIRED) -> Any:
        """The value of an option; null is the same as a missing one.

        Raises:
            FormatError: it is missing and has no default.
        """
        self._known.add(key)
        value = self.content.get(key)
        if value is not None:
            return value
        if default is REQUIRED:
            self.fail(key, None, "a value")
        return default

    def integer(self, key: str, default: Any = REQUIRED, minimum: int = 1) -> Any:
        """An integer of `minimum` or more, or the default."""
        value = self.get(key, default)
        if value is default:
            return value
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            self.fail(key, value, f"an integer of {minimum} or more")
        return value

    def positive(self, key: str, default: Any = REQUIRED) -> Any:
        """A positive finite number, or the default."""
        value = self.get(key, default)
        if value is default:
            return value
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value < float("inf"):
            self.fail(key, value, "a positive number")
        return float(value)

    def boolean(self, key: str, default: Any = REQUIRED) -> Any:
        """True or false, or the default."""
        value = self.get(key, default)
        if value is not default and not isinstance(value, bool):
            self.fail(key, value, "true or false")
        return value

    def integers(self, key: str, default: Any = REQUIRED, minimum: int = 0) -> Any:
        """A tuple of integers of `minimum` or more without repetitions, or the default."""
        value = self.get(key, default)
        if value is default:
            return value
        if not isinstance(value, list) or not value or len(set(map(repr, value))) < len(value):
            self.fail(key, value, "a list of different integers")
        for one in value:
            if not isinstance(one, int) or isinstance(one, bool) or one < minimum:
                self.fail(key, value, f"a list of integers of {minimum} or more")
        return tuple(value)

    def nested(self, key: str) -> ConfigReader:
        """The options of an object within this one; an empty one where it is missing."""
        return ConfigReader(self.path, self.get(key, {}), f"{self.prefix}{key}.")

    def require(self, key: str, allowed: Iterable[Any]) -> None:
        """Raise FormatError unless an option is missing or has one of the values."""
        value, allowed = self.get(key, None), tuple(allowed)
        if value is not None and value not in allowed:
            self.fail(key, value, " or ".join(map(repr, allowed)))

    def ignore(self, *keys: str) -> None:
        """Options that do not change what a drafter computes."""
        self._known.update(keys)

    def finish(self) -> None:
        """Raise FormatError for options that nothing has read.

        Unset ones (null, false) are accepted, because they change no computation.
        """
        unknown = sorted(
            key
            for key, value in self.content.items()
            if key not in self._known and value is not None and value is not False
        )
        if unknown:
            raise FormatError(
                f"{self.path}: unknown options {', '.join(self.prefix + key for key in unknown)}, "
                "which may change what the drafter computes; expected known ones; "
                "remove them if they do not concern the computation"
            )


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
