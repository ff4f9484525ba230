"""Which layers of `transformers` a ParallelDrafter may have, and the sizes of their KV cache."""

from __future__ import annotations

from transformers import PretrainedConfig

MODEL_TYPES = ("llama", "qwen2", "qwen3")


def check_layers(config: PretrainedConfig) -> None:
    """Raise ValueError for layers that do not attend to all earlier positions.

    Args:
        config: of the layers.
    """
    if config.model_type not in MODEL_TYPES:
        raise ValueError(
            f"model_type is {config.model_type!r}; expected one of {', '.join(MODEL_TYPES)}"
        )
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ValueError(f"layer_types has {', '.join(sorted(kinds))}; expected full_attention")


def cache_sizes(config: PretrainedConfig) -> tuple[int, int, int]:
    """Layers, heads of keys and values, and width of a head."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return config.num_hidden_layers, config.num_key_value_heads, width
