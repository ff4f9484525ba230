"""Tiny random models of any `transformers` config, with diverse greedy outputs.

    python tests/python/tiny_models.py llama OUT && lattice-bpd check OUT

writes such a model to a folder, of a model type's default config or of the config of a folder or a
hub name. `shrink_config` copies a config with every size reduced by rules on attribute names: few
and narrow layers, a small vocabulary, few experts, and attention windows and boundaries of rotary
frequencies within test texts. Layer patterns keep one layer of each kind. Sizes that are 0 or
negative mean "off" and are kept.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from config_overrides import OVERRIDES
from lattice_bpd_conformance.cases import find_class

VOCAB, HIDDEN, HEADS, HEAD_DIM, WINDOW = 128, 64, 4, 16, 8
POSITIONS = 256
BOUNDARY = 16  # of rotary frequencies, within test texts
MAX_LAYERS = 4

_LAYER_COUNTS = re.compile(
    r"(num_hidden_layers|n_layers?|num_layers|num_blocks|layers|(\w+_)?(encoder|decoder)_layers"
    r"|num_(encoder|decoder)_layers|depth|num_layers_per_stack|num_global_layers)$"
)
_TOKEN_ID = re.compile(
    r"(\w+_)?(token_(id|index)|token_ids)$|(unk|mask|pad|bos|eos)_index$|im_\w+_id$"
)
_VOCAB = re.compile(r"(\w+_)?vocab_size(_\w+)?$")

# The first pattern that matches a whole name gives the largest value that its attribute keeps.
_LARGEST: tuple[tuple[str, int], ...] = (
    # experts
    (r"(num|n|moe_num)_(\w+_)?experts|num_experts|zero_expert_num", 4),
    (r"(num_experts_per_tok(en)?|moe_topk|moe_k|moe_top_k|top_k_experts|num_selected_experts)", 2),
    (r"\w*num_shared_experts|n_shared_experts|first_k_dense_replace|num_dense_layers", 1),
    (r"n_groups?|num_expert_group|topk_group|\w*_n_?groups", 2),
    (r"(mlp|decoder_sparse|encoder_sparse)_(only_layers|step)", 2),
    # heads
    (r"(num_key_value_heads|num_kv_heads|kv_n_heads|\w+_num_key_value_heads)", 2),
    (r"multi_query_group_num|num_query_groups", 2),
    (r"(\w+_)?(attention_)?(num_)?n?_?heads|n_head|conf_num_attention_heads|index_n_heads", HEADS),
    (r"(qk_nope_head_dim|qk_rope_head_dim|rotary_dim)", 8),
    (r"qk_head_dim", 16),
    (r"(\w+_)?(d_head|head_dim|head_size|headdim|head_width)|dim_head|d_kv|kv_channels", HEAD_DIM),
    # windows
    (r"(\w+_)?(sliding_window|window_size|sliding_window_size|attention_chunk_size)", WINDOW),
    (r"local_attention|attention_window|local_radius|keep_window_size", WINDOW),
    (r"index_topk|index_block_size|\w*chunk_length|(mamba_)?chunk_size", WINDOW),
    (r"index_topk_blocks", 2),
    (r"(global_)?block_size", 4),
    # low rank and state sizes
    (r"\w*(lora_rank|_rank|lowrank|dt_rank)|time_step_rank|laurel_rank", 8),
    (r"\w*d_state|\w*state_size", 8),
    (r"lru_width|mamba_d_ssm", HIDDEN),
    # widths of layers
    (
        r"\w*(intermediate_size|ffn_dim|ffn_hidden_size|d_ff|dff|dim_ff|d_inner|mlp_dim|n_inner)\w*",
        96,
    ),
    (r"inner_hidden_size|feed_forward_size|share_expert_dim|prompt_mid_dim", 96),
    (r"hidden_size_per_layer_input|\w*shape_embed_dim|\w*pronunciation_embed_dim", 16),
    (r"\w*hidden_size(_global)?|d_model|n_embd|hidden_dim|embed_dim|emb_dim|embedding_dim", HIDDEN),
    (r"\w*(embedding_size|proj_dim|projection_dim|output_dim|embed_dim|proj_size)", HIDDEN),
    (r"(projector|input)_(input|output)_dim|moe_hidden_size|patch_dim|\w*channels?", HIDDEN),
    # positions
    (r"original_max_position_embeddings", BOUNDARY),
    (r"\w*(max_position_embeddings|n_positions|max_seq_len|n_ctx|model_max_length)", POSITIONS),
    (r"\w*(max_source_positions|max_target_positions|context_length)", POSITIONS),
    (r"max_inference_chunksize|mem_len", POSITIONS),
    # towers of images and sound, which no test reads
    (r"image_size|resolution|crop_size", 32),
    (r"patch_size", 16),
    (r"num_mel_bins|n_mel_bins|input_feat_size|codebook_size|num_embeddings|num_codebooks", 16),
    (r"num_query_tokens|\w*num_latents|\w*n_latents|latent_query_num|num_residual_layers", 4),
    (r"\w*position_embedding_size|num_position_embeddings|\w*num_patches|max_vit_seq_len", 64),
)
_PATTERNS = tuple((re.compile(pattern), largest) for pattern, largest in _LARGEST)


def shrink_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """A copy of a config with small sizes; the given one is unchanged.

    Args:
        config: of any architecture, composite ones too.

    Returns:
        A config of the same class.

    Raises:
        Exception: whatever the config's class raises for sizes that do not go together.
    """
    values = _shrink(config)
    return type(config)(**values)


def _shrink(config: PreTrainedConfig) -> dict[str, Any]:
    given = config.to_dict()
    values = {name: value for name, value in given.items() if name not in _DROPPED}
    layers = _choose_layers(values)
    for name, value in values.items():
        inner = vars(config).get(name)
        if isinstance(inner, PreTrainedConfig):
            values[name] = {"model_type": inner.model_type, **_shrink(inner)}
        elif isinstance(value, list | tuple) and layers and len(value) == layers[1]:
            values[name] = [value[index] for index in layers[0]]
        elif _LAYER_COUNTS.match(name) and isinstance(value, int):
            values[name] = min(value, len(layers[0]) if layers else 2)
        else:
            values[name] = _shrink_value(name, value)
    _fit_mamba(values, given)
    _fit_heads(values, given)
    _fit_rope(values)
    if values.get("is_encoder_decoder") and values.get("decoder_start_token_id") is None:
        values["decoder_start_token_id"] = values.get("pad_token_id") or 0
    return {**values, **OVERRIDES.get(config.model_type or type(config).__name__, {})}


_DROPPED = (
    "transformers_version", "dtype", "torch_dtype", "architectures", "id2label", "label2id",
    "_name_or_path", "model_type", "quantization_config", "auto_map", "per_layer_config",
)  # fmt: skip


def _choose_layers(values: dict[str, Any]) -> tuple[list[int], int] | None:
    """Indices of the layers to keep, one of each kind, and how many there are; None: no layers."""
    counts = [
        values.get(name) for name in ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    ]
    total = next((count for count in counts if isinstance(count, int)), None)
    if total is None:
        return None
    lists = [v for v in values.values() if isinstance(v, list | tuple) and len(v) == total]
    kinds = [tuple(str(values[index]) for values in lists) for index in range(total)]
    kept = [index for index, kind in enumerate(kinds) if kinds.index(kind) == index][:MAX_LAYERS]
    if len(kept) < 2:
        kept = list(range(min(2, total)))
    return kept, total


def _shrink_value(name: str, value: Any) -> Any:
    if _TOKEN_ID.match(name):
        return _token_ids(name, value)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        return value
    if _VOCAB.match(name):
        return VOCAB if name != "type_vocab_size" else value
    for pattern, largest in _PATTERNS:
        if pattern.fullmatch(name):
            return min(value, largest)
    return value


def _token_ids(name: str, value: Any) -> Any:
    """Special tokens, chosen so that outputs reach their maximum length.

    Padding and start tokens must be in the vocabulary; those of images and sound are outside of it,
    since a text that contained one would need an image.
    """
    if value is None or isinstance(value, Sequence):
        return value if value is None else [VOCAB + index for index, _ in enumerate(value)]
    if name == "eos_token_id" or "forced" in name:
        return None
    if "pad" in name or re.match(r"bos|unk|sep|cls|mask|lang|decoder_start", name):
        return min(value, VOCAB - 1)
    return value if value >= VOCAB else VOCAB - 2


def _fit_heads(values: dict[str, Any], given: dict[str, Any]) -> None:
    """Resolve head sizes whose attribute is None or equals another attribute."""
    if "head_dim" in values and values["head_dim"] is None:
        values["head_dim"] = HEAD_DIM
    rotary = "qk_rope_head_dim"
    if rotary in given and given.get("head_dim") == given[rotary]:
        values["head_dim"] = values[rotary]
    heads = given.get("num_attention_heads")
    if "num_key_value_heads" in given and given["num_key_value_heads"] in (None, heads):
        values["num_key_value_heads"] = values["num_attention_heads"]


def _fit_mamba(values: dict[str, Any], given: dict[str, Any]) -> None:
    """Make heads times head size equal the expanded width of state-space layers."""
    expand = values.get("mamba_expand", values.get("expand"))
    if not isinstance(expand, int):
        return
    for name in ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads"):
        if values.get(name, 0) > 2:
            values[name] = expand * HIDDEN // HEAD_DIM
    for name in ("mamba_d_ssm", "intermediate_size"):
        if given.get(name) == expand * given["hidden_size"]:
            values[name] = expand * HIDDEN


def _fit_rope(values: dict[str, Any]) -> None:
    """Resize the lists of rotary embeddings."""
    half = values.get("head_dim") or HEAD_DIM
    half = int(half * (values.get("partial_rotary_factor") or 1)) // 2
    for name in ("rope_parameters", "rope_scaling"):
        rope = values.get(name)
        if isinstance(rope, dict):
            values[name] = _resize_rope(rope, half)


def _resize_rope(rope: dict[str, Any], half: int) -> dict[str, Any]:
    resized = dict(rope)
    for key, value in rope.items():
        if isinstance(value, dict):
            resized[key] = _resize_rope(value, half)
        elif key == "mrope_section":
            part = half // 4
            resized[key] = [half - (len(value) - 1) * part] + [part] * (len(value) - 1)
        elif isinstance(value, list):
            resized[key] = value[:half]
        elif key == "original_max_position_embeddings":
            resized[key] = min(value, BOUNDARY)
    return resized


MAX_PARAMETERS = 20_000_000
_GAINS = (1.5, 3.0, 0.7, 6.0)
_STRUCTURED = re.compile(r"A_log|dt_bias|dt_proj|\.D$|inv_freq|conv1d|time_|_scale$|beta|sinks")
_TRIAL_TOKENS = 16
_MIN_DISTINCT = 6


def make_tiny_model(model_class: Any, config: PreTrainedConfig, seed: int = 0) -> Any:
    """A tiny model of a config's architecture with random weights, float32, on the CPU.

    Default initializers make small models repeat one token. So weights are sampled with a standard
    deviation that keeps states at a scale of 1, times the first of several gains with which greedy
    output is diverse.

    Args:
        model_class: of `transformers`.
        config: full-size; it is copied.
        seed: of the weights.

    Returns:
        A PreTrainedModel in evaluation mode, with eager attention and no end-of-text token.

    Raises:
        ValueError: the tiny model has more than MAX_PARAMETERS parameters.
        Exception: whatever `transformers` raises while it builds the model.
    """
    tiny = _config_for(model_class, shrink_config(config))
    with torch.device("meta"):
        count = sum(weight.numel() for weight in _build(model_class, tiny).parameters())
    if count > MAX_PARAMETERS:
        raise ValueError(f"shrinking leaves {count:,} parameters; expected {MAX_PARAMETERS:,}")
    torch.manual_seed(seed)
    model = _build(model_class, tiny).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.forced_eos_token_id = None
    original = {name: weight.clone() for name, weight in model.state_dict().items()}
    best, most = _GAINS[0], 0
    for gain in _GAINS:
        _set_weights(model, original, seed, gain)
        distinct = _count_distinct(model)
        if distinct > most:
            best, most = gain, distinct
        if distinct >= _MIN_DISTINCT:
            return model
    _set_weights(model, original, seed, best)
    return model


def _config_for(model_class: Any, config: PreTrainedConfig) -> PreTrainedConfig:
    """The sub-config of a composite config that the class takes."""
    expected = model_class.config_class
    if expected is None or isinstance(config, expected):
        return config
    parts = [part for part in vars(config).values() if isinstance(part, expected)]
    return parts[0] if parts else config


def _build(model_class: Any, config: PreTrainedConfig) -> Any:
    return model_class._from_config(config, attn_implementation="eager", dtype=torch.float32)


@torch.no_grad()
def _set_weights(model: nn.Module, original: dict[str, Tensor], seed: int, gain: float) -> None:
    """Set random weights; structured ones keep their values, scales stay near 1."""
    generator = torch.Generator().manual_seed(seed)
    model.load_state_dict(original)
    seen: set[int] = set()
    for name, module in model.named_modules():
        for short, weight in module.named_parameters(recurse=False):
            full = f"{name}.{short}"
            if id(weight) in seen or _STRUCTURED.search(full) or not weight.is_floating_point():
                continue
            seen.add(id(weight))
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim >= 2:
                fan_in = weight.shape[-2 if type(module).__name__ == "Conv1D" else -1]
                weight.copy_(noise * gain * fan_in**-0.5)
            else:
                weight.add_(0.1 * noise)


@torch.inference_mode()
def _count_distinct(model: Any) -> int:
    """Distinct tokens of a short greedy output; 0 where logits are not finite."""
    ids = torch.arange(10, 21).unsqueeze(0) % VOCAB
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=_TRIAL_TOKENS
    )
    return len(set(output[0, -_TRIAL_TOKENS:].tolist()))


def main() -> None:
    """Writes the folder of a tiny model; see the module."""
    parser = argparse.ArgumentParser(description="Write a tiny random model to a folder.")
    parser.add_argument("config", help="model type, folder or hub name")
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    is_type = args.config in CONFIG_MAPPING and not Path(args.config).exists()
    config = CONFIG_MAPPING[args.config]() if is_type else AutoConfig.from_pretrained(args.config)
    make_tiny_model(find_class(config), config).save_pretrained(args.output)


if __name__ == "__main__":
    main()
