"""The format of z-lab's DFlash and DFlash2 drafters, of SpecForge and of LiLiCorr.

config.json has the options of Qwen3 layers, `block_size`, `num_target_layers` and `dflash_config`
with `mask_token_id` and `target_layer_ids` (0-based; the hidden state after that layer).
model.safetensors has the tensors; the embeddings are the target's. `dflash_config` also has the
options of convolutions, selector, LiLiCorr or, as SpecForge writes it, DSpark's Markov head.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd_drafters.config import (
    FULL,
    SLIDING,
    BlockDrafterConfig,
    LiLiCorrConfig,
    MarkovConfig,
    SelectorConfig,
)
from lattice_bpd_drafters.format_checkpoint import (
    Checkpoint,
    convolution_options,
    read_checkpoint_tensors,
    read_convolution,
    read_lilicorr,
    read_markov,
    read_selector,
    read_transforms,
    scorer_options,
    transform_options,
)
from lattice_bpd_drafters.format_files import (
    CONFIG_NAME,
    ConfigReader,
    read_config_json,
    refuse_other_drafters,
    write_checkpoint,
)

if TYPE_CHECKING:
    from lattice_bpd_drafters.block_drafter import BlockDrafter


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


ARCHITECTURE = "DFlashDraftModel"
_SELECTOR, _LILICORR = "DFlash2DraftModel", "LiLiCorrDraftModel"
ARCHITECTURES = (ARCHITECTURE, _SELECTOR, _LILICORR)
_PROJECTORS = ("dflash", "dflash2", "lilicorr", "dspark")


def recognizes(content: dict[str, Any]) -> bool:
    """Whether a config.json is of this format."""
    names = content.get("architectures")
    return isinstance(names, list) and any(name in ARCHITECTURES for name in names)


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
        expected = " or ".join(f"[{name!r}]" for name in ARCHITECTURES)
        reader.fail("architectures", content.get("architectures"), expected)
    reader.require("model_type", ["qwen3"])
    fields = read_layer_options(reader)
    inner = reader.nested("dflash_config")
    inner.require("projector_type", _PROJECTORS)
    names = [*content["architectures"], inner.get("projector_type", None)]
    fields |= {
        "vocab_size": reader.integer("vocab_size"),
        "target_hidden_size": reader.integer("target_hidden_size", fields["hidden_size"]),
        "draft_vocab_size": reader.integer("draft_vocab_size", None),
        **read_transforms(reader, inner),
        "block_size": inner.integer("block_size", reader.integer("block_size", None, 2), 2),
        "mask_token_id": inner.integer(
            "mask_token_id", reader.integer("mask_token_id", None, 0), 0
        ),
        "hidden_layers": _read_layer_ids(reader, inner, fields["num_layers"]),
        "causal": reader.boolean("is_causal", inner.boolean("causal", None)),
        "next_token_layout": inner.boolean("sample_from_anchor", "dspark" in names),
        "convolution": read_convolution(inner),
    }
    if _LILICORR in names or "lilicorr" in names:
        fields["scorer"] = read_lilicorr(inner, fields["hidden_size"])
    elif _SELECTOR in names or "dflash2" in names or inner.has("selector_rank"):
        fields["scorer"] = read_selector(inner)
    elif "dspark" in names:
        size = fields["draft_vocab_size"] or fields["vocab_size"]
        fields["scorer"] = read_markov(inner, size)
    if fields["block_size"] is None:
        reader.fail("block_size", None, "an integer of 2 or more, here or in dflash_config")
    reader.boolean("has_own_lm_head", None)  # whether there is one is read off the tensors
    inner.finish()
    reader.finish()
    return read_checkpoint_tensors(directory, fields)


def save(drafter: BlockDrafter, directory: str | Path) -> None:
    """Write config.json and model.safetensors into a folder, which is made where it is missing.

    Raises:
        OSError: the directory cannot be written.
        ValueError: the vocabulary is not known yet, or a config that the format cannot hold.
    """
    config = drafter.config
    if config.vocab_size is None:
        raise ValueError(
            "z_lab.save: the drafter's vocabulary is not known; call attach(target) before saving"
        )
    if -1 in config.hidden_layers:
        raise ValueError(
            f"z_lab.save: hidden_layers is {config.hidden_layers}; the format has no -1, the "
            "output of the embedding; save a drafter that reads layers only"
        )
    inner: dict[str, Any] = {
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.hidden_layers),
    }
    if config.causal is not None:
        inner["causal"] = config.causal
    if config.next_token_layout or isinstance(config.scorer, MarkovConfig):
        inner["sample_from_anchor"] = config.next_token_layout
    inner |= convolution_options(config) | scorer_options(config)
    content: dict[str, Any] = {
        "architectures": [_architecture(config)], "model_type": "qwen3", **layer_options(config),
        "vocab_size": config.vocab_size,
        "block_size": config.block_size, "dflash_config": inner, "tie_word_embeddings": False,
        "dtype": str(drafter.fc.weight.dtype).removeprefix("torch."),
    }  # fmt: skip
    if config.target_hidden_size != config.hidden_size:
        content["target_hidden_size"] = config.target_hidden_size
    if config.draft_vocab_size is not None:
        content["draft_vocab_size"] = config.draft_vocab_size
    if config.has_own_output:
        content["has_own_lm_head"] = True
    content |= transform_options(config)
    write_checkpoint(Path(directory), content, drafter.state_dict())


def _architecture(config: BlockDrafterConfig) -> str:
    if isinstance(config.scorer, SelectorConfig):
        return _SELECTOR
    return _LILICORR if isinstance(config.scorer, LiLiCorrConfig) else ARCHITECTURE


def _read_layer_ids(reader: ConfigReader, inner: ConfigReader, num_layers: int) -> tuple[int, ...]:
    """`target_layer_ids`, or the format's default; below `num_target_layers` where that is known.

    The default, for L layers of the target and n of the drafter: L // 2 if n is 1, otherwise n
    layers at equal distances from 1 to L - 3.
    """
    count = reader.integer("num_target_layers", None)
    ids: tuple[int, ...] | None = inner.integers(
        "target_layer_ids", reader.integers("target_layer_ids", None)
    )
    if ids is None:
        if count is None or count < 5:
            inner.fail("target_layer_ids", None, "a list, as num_target_layers gives no default")
        span = count - 4
        steps = range(num_layers)
        ids = (
            (count // 2,) if num_layers == 1
            else tuple(round(1 + step * span / (num_layers - 1)) for step in steps)
        )  # fmt: skip
    if count is not None and max(ids) >= count:
        inner.fail(
            "target_layer_ids", list(ids),
            f"0..{count - 1} for a target of {count} layers (ids that count the embedding as 0, as "
            "in the speculators format, are greater by one)",
        )  # fmt: skip
    return ids
