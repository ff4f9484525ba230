"""Tiny random models with diverse greedy outputs."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from lattice_bpd.conformance.shrink import VOCAB, shrink_config

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
