"""Options of Qwen3 layers in config.json, which DFlash drafters share."""

from __future__ import annotations

from typing import Any

from lattice_bpd.models.block_drafter.config import FULL, SLIDING, BlockDrafterConfig
from lattice_bpd.models.block_drafter.formats.config_reader import ConfigReader


def read_layer_options(reader: ConfigReader, *, rope_theta: float | None = None) -> dict[str, Any]:
    """The fields of BlockDrafterConfig that describe the layers.

    Args:
        reader: of the object with `hidden_size` and the others.
        rope_theta: of a file without one; None: it must have one.

    Raises:
        FormatError: an option is missing, or describes layers of another kind.
    """
    _refuse_other_layers(reader)
    num_layers = reader.integer("num_hidden_layers")
    layer_types, window = _read_windows(reader, num_layers)
    return {
        "hidden_size": reader.integer("hidden_size"),
        "num_layers": num_layers,
        "num_heads": reader.integer("num_attention_heads"),
        "num_kv_heads": reader.integer("num_key_value_heads"),
        "head_dim": reader.integer("head_dim"),
        "intermediate_size": reader.integer("intermediate_size"),
        "rms_norm_eps": reader.positive("rms_norm_eps"),
        "rope_theta": _read_rope_theta(reader, rope_theta),
        "layer_types": layer_types,
        "sliding_window": window,
    }


def layer_options(config: BlockDrafterConfig) -> dict[str, Any]:
    """The options that `read_layer_options` reads, in the spelling that older readers know too."""
    return {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "hidden_act": "silu",
        "attention_bias": False,
        "layer_types": list(config.layer_types) or [FULL] * config.num_layers,
        "use_sliding_window": SLIDING in config.layer_types,
        "sliding_window": config.sliding_window,
    }


def _refuse_other_layers(reader: ConfigReader) -> None:
    reader.require("hidden_act", ["silu"])
    reader.require("attention_bias", [False])
    reader.require("mlp_bias", [False])
    reader.require("rope_is_neox_style", [True])
    reader.require("partial_rotary_factor", [1.0])
    reader.require("rope_scaling", [{"rope_type": "default"}, {"type": "default"}])


def _read_rope_theta(reader: ConfigReader, default: float | None) -> float:
    """`rope_theta`, or that of `rope_parameters`, where newer files have it."""
    if not reader.has("rope_parameters"):
        theta: float = (
            reader.positive("rope_theta") if default is None
            else reader.positive("rope_theta", default)
        )  # fmt: skip
        reader.get("rope_parameters", None)
        return theta
    nested = reader.nested("rope_parameters")
    nested.require("rope_type", ["default"])
    nested.require("partial_rotary_factor", [1.0])
    theta = nested.positive("rope_theta")
    nested.finish()
    if reader.positive("rope_theta", theta) != theta:
        reader.fail("rope_theta", reader.get("rope_theta"), f"{theta} as in rope_parameters")
    return theta


def _read_windows(reader: ConfigReader, num_layers: int) -> tuple[tuple[str, ...], int | None]:
    """`layer_types` (empty: all full) and `sliding_window` (None where no layer slides)."""
    window = reader.integer("sliding_window", None)
    uses_window = reader.boolean("use_sliding_window", window is not None)
    listed = reader.get("layer_types", None)
    if listed is None:
        if uses_window and window is not None:
            reader.fail("layer_types", None, "a list, since there is a sliding window")
        return (), None
    if not isinstance(listed, list) or not set(map(str, listed)) <= {FULL, SLIDING}:
        reader.fail("layer_types", listed, f"a list of {FULL!r} and {SLIDING!r}")
    if len(listed) != num_layers:
        reader.fail("layer_types", listed, f"{num_layers} of them, as num_hidden_layers says")
    if SLIDING not in listed:
        return (), None
    if window is None or not uses_window:
        reader.fail("sliding_window", window, "an integer with use_sliding_window for its layers")
    return tuple(listed), window
