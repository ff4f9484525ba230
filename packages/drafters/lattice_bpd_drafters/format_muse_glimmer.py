"""The format of the Muse-Glimmer assistant, the native DFlash of transformers.

config.json has all options at the top level; `vocab_size` is the target's and not in it. Sliding
layers are bidirectional and see a distance of `sliding_window` inclusive, one more than elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd_drafters.format_checkpoint import (
    Checkpoint,
    read_checkpoint_tensors,
)
from lattice_bpd_drafters.format_files import (
    CONFIG_NAME,
    ConfigReader,
    read_config_json,
    refuse_other_drafters,
    write_checkpoint,
)
from lattice_bpd_drafters.format_z_lab import layer_options, read_layer_options

if TYPE_CHECKING:
    from lattice_bpd_drafters.block_drafter import BlockDrafter

MODEL_TYPE = "muse_glimmer_assistant"
_ROPE_THETA = 500000.0  # the format's default
_NAMES = {
    "encoder.fc.weight": "fc.weight",
    "encoder.output_norm_enc.weight": "hidden_norm.weight",
}


def recognizes(content: dict[str, Any]) -> bool:
    """Whether a config.json is of this format."""
    return content.get("model_type") == MODEL_TYPE


def read(directory: str | Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        FormatError: files that are missing, damaged, of another format, or do not fit each other.
    """
    directory = Path(directory)
    path = directory / CONFIG_NAME
    content = read_config_json(directory)
    refuse_other_drafters(path, content)
    reader = ConfigReader(path, content)
    if not recognizes(content):
        reader.fail("model_type", content.get("model_type"), repr(MODEL_TYPE))
    fields = read_layer_options(reader, rope_theta=_ROPE_THETA)
    if fields["sliding_window"] is not None:
        fields["sliding_window"] += 1
    fields |= {
        "vocab_size": None,
        "target_hidden_size": fields["hidden_size"],
        "block_size": reader.integer("block_size", minimum=2),
        "mask_token_id": reader.integer("mask_token_id", minimum=0),
        "hidden_layers": reader.integers("target_layer_ids"),
        "causal": False,
    }
    reader.finish()
    return read_checkpoint_tensors(directory, fields, names=_NAMES, unused=frozenset())


def save(drafter: BlockDrafter, directory: str | Path) -> None:
    """Write config.json and model.safetensors into a folder, which is made where it is missing.

    Raises:
        OSError: the directory cannot be written.
        ValueError: a config that the format cannot hold.
    """
    config = drafter.config
    is_causal = any(config.is_causal(layer) for layer in range(config.num_layers))
    has_own = config.has_own_embedding or config.has_own_output or config.has_mask_embedding
    has_more = config.scorer is not None or config.convolution is not None
    has_more = has_more or config.logit_softcap is not None or config.embedding_scale != 1.0
    if (
        has_more or is_causal or has_own or config.next_token_layout or config.logit_scale != 1.0
        or config.target_hidden_size != config.hidden_size or -1 in config.hidden_layers
    ):  # fmt: skip
        raise ValueError(
            "muse_glimmer.save: the drafter is causal, has embeddings of its own, the next-token "
            "layout, transition scores, convolutions, scaled or capped logits, scaled embeddings "
            "or a width other than the target's, which the format does not have; save it in the "
            "z-lab format"
        )
    layers = layer_options(config)
    theta, window = layers.pop("rope_theta"), config.sliding_window
    for key in ("use_sliding_window", "attention_bias", "sliding_window"):
        del layers[key]
    content = {
        "architectures": ["MuseGlimmerAssistantModel"], "model_type": MODEL_TYPE, **layers,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "block_size": config.block_size, "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.hidden_layers),
        "dtype": str(drafter.fc.weight.dtype).removeprefix("torch."),
    }  # fmt: skip
    if window is not None:
        content["sliding_window"] = window - 1
    names = {own: other for other, own in _NAMES.items()}
    tensors = {names.get(name, name): value for name, value in drafter.state_dict().items()}
    write_checkpoint(Path(directory), content, tensors)
