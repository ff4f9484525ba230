"""Tiny PARD and P-EAGLE drafters for tests, and a reference of P-EAGLE in plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen3Config,
)

from lattice_bpd_drafters.p_eagle import PEagleConfig, PEagleDrafter
from lattice_bpd_drafters.parallel import PardDrafter
from target_models import VOCAB

MASK = VOCAB - 1
WIDTH = 32
_CLASSES = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
SCALED_ROPE = {
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip


def layers(kind: str = "qwen3", **options: Any) -> Any:
    sizes = {
        "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 96, "bos_token_id": None, "eos_token_id": None,
        "pad_token_id": None, "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    }  # fmt: skip
    return _CLASSES[kind](**{**sizes, **options})


def scatter(module: Any, scale: float = 0.3) -> Any:
    """Random weights; norms are far from 1, so that each of them matters."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1.0 + 0.3 * noise if "norm" in name else scale * noise)
    return module.eval()


def build_pard(kind: str = "qwen3", num_slots: int = 4, **options: Any) -> PardDrafter:
    model = AutoModelForCausalLM.from_config(layers(kind, **options), attn_implementation="sdpa")
    return PardDrafter(scatter(model), mask_token_id=MASK, num_slots=num_slots)


def build_p_eagle(kind: str = "qwen3", **options: Any) -> PEagleDrafter:
    fields = {"hidden_layers": (1, 0, -1), "mask_token_id": MASK, "num_slots": 4}
    of_layers = {key: options.pop(key) for key in ("rope_parameters",) if key in options}
    config = PEagleConfig(layers(kind, **of_layers), **{**fields, **options})
    drafter = scatter(PEagleDrafter(config))
    if drafter.d2t is not None:  # draft id i is target id 2 i + 1
        drafter.d2t.copy_(torch.arange(len(drafter.d2t)) + 1)
    return drafter


def reference_logits(drafter: PEagleDrafter, features: np.ndarray, tokens: list[int]) -> np.ndarray:
    """(H, V) logits after `tokens` (p + 1 of them), features (p, n*D) of all but the last.

    In float64, without a cache, one position and one head at a time; default rotary embeddings.
    """
    config, shape = drafter.config, drafter.layer_config
    weights = {name: w.detach().double().numpy() for name, w in drafter.state_dict().items()}
    masks = drafter.num_slots - 1
    rows = np.concatenate([features, np.repeat(weights["mask_hidden"][0], masks, axis=0)])
    ids = tokens[1:] + [drafter.mask_token_id] * masks
    if config.norm_before_fc:
        rows = np.stack([rms(row, weights["input_norm.weight"]) for row in rows])
    if config.fc_norm:
        parts = np.split(rows, len(config.hidden_layers), axis=1)
        rows = np.concatenate(
            [np.stack([rms(row, weights[f"fc_norm.{n}.weight"]) for row in part])
             for n, part in enumerate(parts)], axis=1,
        )  # fmt: skip
    states = rows @ weights["fc.weight"].T
    for number in range(shape.num_hidden_layers):
        prefix = f"layers.{number}."
        of = {name.removeprefix(prefix).removesuffix(".weight"): value
              for name, value in weights.items() if name.startswith(prefix)}  # fmt: skip
        if number == 0:
            normed = np.stack([rms(row, of["hidden_norm"]) for row in states])
            embedded = [
                rms(weights["embed_tokens.weight"][one], of["input_layernorm"]) for one in ids
            ]
            inputs = np.concatenate([np.stack(embedded), normed], axis=1)
            states = normed if config.norm_before_residual else states
        else:
            inputs = np.stack([rms(row, of["input_layernorm"]) for row in states])
        states = states + attend(inputs, of, shape)
        after = np.stack([rms(row, of["post_attention_layernorm"]) for row in states])
        gate = after @ of["mlp.gate_proj"].T
        states = states + (gate / (1 + np.exp(-gate)) * (after @ of["mlp.up_proj"].T)) @ of[
            "mlp.down_proj"].T  # fmt: skip
    last = np.stack([rms(row, weights["norm.weight"]) for row in states[-masks - 1 :]])
    return last @ weights["lm_head.weight"].T


def attend(inputs: np.ndarray, of: dict[str, np.ndarray], shape: Any) -> np.ndarray:
    """Causal attention of rows (m, width), one row and head at a time."""
    width, group = shape.head_dim, shape.num_attention_heads // shape.num_key_value_heads
    mixed = np.zeros((len(inputs), shape.num_attention_heads * width))
    for head in range(shape.num_attention_heads):
        own = slice(head * width, (head + 1) * width)
        shared = slice(head // group * width, (head // group + 1) * width)
        queries, keys = (
            inputs @ of["self_attn.q_proj"][own].T,
            inputs @ of["self_attn.k_proj"][shared].T,
        )
        values = inputs @ of["self_attn.v_proj"][shared].T
        if "self_attn.q_norm" in of:
            queries = np.stack([rms(row, of["self_attn.q_norm"]) for row in queries])
            keys = np.stack([rms(row, of["self_attn.k_norm"]) for row in keys])
        keys = np.stack([rotate(row, position) for position, row in enumerate(keys)])
        for position, query in enumerate(queries):
            scores = keys[: position + 1] @ rotate(query, position) / np.sqrt(width)
            shares = np.exp(scores - scores.max())
            mixed[position, own] = shares @ values[: position + 1] / shares.sum()
    return mixed @ of["self_attn.o_proj"].T


def rotate(vector: np.ndarray, position: int) -> np.ndarray:
    half = len(vector) // 2
    angles = position * 100.0 ** (-np.arange(half) / half)
    first, second = vector[:half], vector[half:]
    return np.concatenate([first * np.cos(angles) - second * np.sin(angles),
                           second * np.cos(angles) + first * np.sin(angles)])  # fmt: skip


def rms(vector: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return vector / np.sqrt((vector**2).mean() + 1e-6) * weight


def tiny_target() -> LlamaForCausalLM:
    return scatter(LlamaForCausalLM(layers("llama")), 0.4)
