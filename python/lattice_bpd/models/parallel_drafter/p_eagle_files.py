"""P-EAGLE checkpoints of vLLM's speculators library.

config.json has `speculators_model_type` "peagle", the config of the layers in
`transformer_layer_config` without the defaults of its class, and
`eagle_aux_hidden_state_layer_ids`, in which 0 is the output of the embedding: greater by one than
layer ids elsewhere. Its number of slots is that of its proposal method.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig

from lattice_bpd._core import FormatError
from lattice_bpd.models.block_drafter.formats.config_reader import (
    CONFIG_NAME,
    ConfigReader,
    read_config_json,
)
from lattice_bpd.models.block_drafter.formats.tensor_files import (
    check_tensors,
    read_tensors,
    write_checkpoint,
)
from lattice_bpd.models.parallel_drafter.layers import check_layers

if TYPE_CHECKING:
    from lattice_bpd.models.parallel_drafter.p_eagle import PEagleConfig

_KIND = "peagle"
_MODEL_TYPES = ("llama", "qwen3")
_UNUSED_TENSORS = frozenset({"t2d", "verifier_lm_head.weight", "verifier_norm.weight"})
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm")
# Older spellings that `transformers` translates, and bookkeeping.
_LAYER_OPTIONS = frozenset({
    "model_type", "rope_theta", "rope_scaling", "torch_dtype", "_name_or_path", "auto_map",
    "transformers_version",
})  # fmt: skip


class PEagleFiles(NamedTuple):
    """A checkpoint.

    Attributes:
        path: of the tensors, for messages.
        fields: of PEagleConfig.
        tensors: by the names of the state dict.
    """

    path: Path
    fields: dict[str, Any]
    tensors: dict[str, Tensor]

    def check(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Raise FormatError unless the tensors have the shapes of a drafter's state dict."""
        check_tensors(self.path, self.tensors, shapes)
        _check_d2t(self.path, self.tensors.get("d2t"), self.fields["layers"].vocab_size)


def read_p_eagle(directory: Path, num_slots: int | None) -> PEagleFiles:
    """Read the files of a checkpoint; `PEagleFiles.check` completes the checks.

    Raises:
        FormatError: files that are missing, damaged or of another format.
    """
    content = read_config_json(directory)
    reader = ConfigReader(directory / CONFIG_NAME, content)
    if reader.get("speculators_model_type", None) != _KIND:
        reader.fail("speculators_model_type", content.get("speculators_model_type"), repr(_KIND))
    layers = _read_layers(reader)
    fields: dict[str, Any] = {
        "layers": layers,
        "hidden_layers": tuple(
            one - 1 for one in reader.integers("eagle_aux_hidden_state_layer_ids")
        ),
        "mask_token_id": reader.integer("mask_token_id", minimum=0),
        "num_slots": _read_num_slots(reader) if num_slots is None else num_slots,
        "draft_vocab_size": reader.integer("draft_vocab_size"),
        **{name: reader.boolean(name, False) for name in _FLAGS},
    }
    reader.require("target_hidden_size", [layers.hidden_size])
    # norm_output: of steps that read the states of earlier steps, which P-EAGLE does not have.
    reader.ignore("norm_output", "embed_requires_grad", "speculators_version", "speculators_config")
    reader.finish()
    if fields["mask_token_id"] >= layers.vocab_size:
        reader.fail("mask_token_id", fields["mask_token_id"], f"0..{layers.vocab_size - 1}")
    if fields["norm_before_fc"] and fields["fc_norm"]:
        reader.fail("fc_norm", True, "false, as norm_before_fc is true")
    if fields["draft_vocab_size"] == layers.vocab_size:
        fields["draft_vocab_size"] = None
    path, stored = read_tensors(directory)
    tensors = {name: value for name, value in stored.items() if name not in _UNUSED_TENSORS}
    if fields["draft_vocab_size"] is None:
        tensors.pop("d2t", None)
    fields["has_own_embedding"] = "embed_tokens.weight" in tensors
    if layers.num_hidden_layers > len(tensors):  # before layers of that number are built
        raise FormatError(
            f"{path}: has {len(tensors)} tensors; expected those of {layers.num_hidden_layers} "
            f"layers, as {CONFIG_NAME} says; copy the checkpoint again"
        )
    return PEagleFiles(path, fields, tensors)


def save_p_eagle(
    config: PEagleConfig, tensors: dict[str, Tensor], directory: Path, verifier: str | None
) -> None:
    """Write config.json and model.safetensors into a folder, which is made where it is missing.

    Raises:
        OSError: the directory cannot be written.
    """
    layers = config.layers
    stored = dict(tensors)
    if "d2t" in stored:
        d2t = stored["d2t"].cpu()
        stored["t2d"] = torch.zeros(layers.vocab_size, dtype=torch.bool)
        stored["t2d"][d2t + torch.arange(len(d2t))] = True
    method = {"proposal_type": "greedy", "speculative_tokens": config.num_slots}
    content: dict[str, Any] = {
        "architectures": ["PEagleSpeculator"], "speculators_model_type": _KIND,
        "speculators_version": "0.5.0",
        "speculators_config": {
            "algorithm": _KIND, "proposal_methods": [method], "default_proposal_method": "greedy",
            "verifier": {"name_or_path": verifier, "architectures": []},
        },
        "transformer_layer_config": {**layers.to_diff_dict(), "model_type": layers.model_type},
        "draft_vocab_size": config.draft_vocab_size or layers.vocab_size,
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in config.hidden_layers],
        "mask_token_id": config.mask_token_id,
        **{name: getattr(config, name) for name in _FLAGS},
        "tie_word_embeddings": False,
        "dtype": str(tensors["fc.weight"].dtype).removeprefix("torch."),
    }  # fmt: skip
    write_checkpoint(directory, content, stored)


def _read_layers(reader: ConfigReader) -> PretrainedConfig:
    """The config in `transformer_layer_config`."""
    nested = reader.nested("transformer_layer_config")
    kind = nested.get("model_type")
    if kind not in _MODEL_TYPES:
        nested.fail("model_type", kind, " or ".join(map(repr, _MODEL_TYPES)))
    options = {key: value for key, value in nested.content.items() if key != "model_type"}
    try:
        config: PretrainedConfig = AutoConfig.for_model(kind, **options)
        check_layers(config)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FormatError(
            f"{reader.path}: transformer_layer_config: {error}; this checkpoint cannot be loaded"
        ) from error
    nested.ignore(*type(config)().to_dict(), *_LAYER_OPTIONS)
    nested.finish()
    for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
                 "num_key_value_heads", "intermediate_size"):  # fmt: skip
        nested.integer(name, getattr(config, name))
    return config


def _read_num_slots(reader: ConfigReader) -> int:
    """`speculative_tokens` of the default proposal method."""
    nested = reader.nested("speculators_config")
    name, methods = nested.get("default_proposal_method", None), nested.get("proposal_methods", [])
    for method in methods if isinstance(methods, list) else []:
        part = ConfigReader(reader.path, method, "speculators_config.proposal_methods.")
        if part.get("proposal_type", None) == name:
            count: int = part.integer("speculative_tokens")
            return count
    return nested.fail("proposal_methods", methods, f"a method {name!r}; or give num_slots")


def _check_d2t(path: Path, d2t: Tensor | None, vocab_size: int) -> None:
    """Raise FormatError if a draft id's target id is outside of the vocabulary."""
    if d2t is None:
        return
    targets = d2t + torch.arange(len(d2t))
    if targets.min() < 0 or targets.max() >= vocab_size:
        raise FormatError(
            f"{path}: d2t leads to target ids {int(targets.min())}..{int(targets.max())}; expected "
            f"0..{vocab_size - 1} (target id = draft id + d2t[draft id])"
        )
