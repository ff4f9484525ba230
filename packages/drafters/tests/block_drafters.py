"""Tiny block drafters, a reference that computes their states by plain loops, changed files."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from blockwise_models import VOCAB, build_base
from lattice_bpd_drafters.block_drafter import BlockDrafter
from lattice_bpd_drafters.config import BlockDrafterConfig

MASK = VOCAB - 1
CONFIG = BlockDrafterConfig(
    hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, intermediate_size=24,
    vocab_size=VOCAB, target_hidden_size=32, hidden_layers=(-1, 0), block_size=4,
    mask_token_id=MASK,
)  # fmt: skip
SLIDING = {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 5}
VARIANTS: dict[str, dict[str, Any]] = {
    "fill_in": {},
    "next_token": {"next_token_layout": True},
    "causal": {"causal": True},
    "all_heads": {"num_kv_heads": 4},
    "sliding": SLIDING,  # causal where it slides
    "sliding_bidirectional": {**SLIDING, "causal": False, "sliding_window": 3},
    "next_token_causal_sliding": {**SLIDING, "next_token_layout": True, "causal": True},
    "mask_embedding": {"has_mask_embedding": True},
}


def build_drafter(seed: int = 0, **options: Any) -> BlockDrafter:
    """A random drafter with a random Llama; norms are far from 1, so that each of them matters."""
    torch.manual_seed(seed)
    target = build_base("llama").eval()
    drafter = BlockDrafter(dataclasses.replace(CONFIG, **options)).eval()
    with torch.no_grad():
        for name, weight in drafter.named_parameters():
            if weight.ndim == 1:
                weight.copy_(torch.rand(weight.shape) + 0.5 if "norm" in name else
                             torch.randn(weight.shape))  # fmt: skip
        target.get_input_embeddings().weight.mul_(20)  # so that tokens differ
    drafter.attach(target)
    return drafter


def reference_states(drafter: BlockDrafter, features: np.ndarray, anchor: int) -> list[np.ndarray]:
    """H states (D,) of a block after features (p, n*D_target), in float64, one number at a time."""
    config = drafter.config
    weights = {name: w.detach().double().numpy() for name, w in drafter.state_dict().items()}
    embedding = drafter._shared[0].weight.detach().double().numpy()
    position = len(features)
    context = [rms(weights["fc.weight"] @ row, weights["hidden_norm.weight"]) for row in features]
    mask = weights.get("mask_embedding", embedding[config.mask_token_id])
    block = [embedding[anchor]] + [mask] * (config.block_size - 1)
    block = [config.embedding_scale * row for row in block]
    group = config.num_heads // config.num_kv_heads
    for number in range(config.num_layers):
        of = {name.removeprefix(f"layers.{number}.").removesuffix(".weight"): w
              for name, w in weights.items() if name.startswith(f"layers.{number}.")}  # fmt: skip
        slides = bool(config.layer_types) and config.layer_types[number] == "sliding_attention"
        causal = slides if config.causal is None else config.causal
        normed = [rms(row, of["input_layernorm"]) for row in block]
        positions = list(range(position)) + [position + j for j in range(len(block))]
        inputs = context + convolve(of, "attention_conv", 0, normed, normed, config)
        keys = [heads_of(of["self_attn.k_proj"] @ row, of["self_attn.k_norm"], p, config)
                for row, p in zip(inputs, positions, strict=True)]  # fmt: skip
        values = [(of["self_attn.v_proj"] @ row).reshape(-1, config.head_dim) for row in inputs]
        changes = []
        for j, row in enumerate(inputs[position:]):
            here = position + j
            queries = heads_of(of["self_attn.q_proj"] @ row, of["self_attn.q_norm"], here, config)
            mixed = []
            for head, query in enumerate(queries):
                scores, seen = [], []
                for key, value, there in zip(keys, values, positions, strict=True):
                    if causal and there > here:
                        continue
                    if slides and abs(there - here) >= config.sliding_window:
                        continue
                    scores.append(float(query @ key[head // group]) / math.sqrt(config.head_dim))
                    seen.append(value[head // group])
                powers = np.exp(np.array(scores) - max(scores))
                mixed.append((powers / powers.sum()) @ np.array(seen))
            changes.append(of["self_attn.o_proj"] @ np.concatenate(mixed))
        changes = convolve(of, "attention_conv", 1, changes, normed, config)
        block = [row + change for row, change in zip(block, changes, strict=True)]
        normed = [rms(row, of["post_attention_layernorm"]) for row in block]
        changes = []
        for row in convolve(of, "mlp_conv", 0, normed, normed, config):
            gate, up = of["mlp.gate_proj"] @ row, of["mlp.up_proj"] @ row
            changes.append(of["mlp.down_proj"] @ (gate / (1 + np.exp(-gate)) * up))
        changes = convolve(of, "mlp_conv", 1, changes, normed, config)
        block = [row + change for row, change in zip(block, changes, strict=True)]
    outputs = [rms(row, weights["norm.weight"]) for row in block]
    return outputs if config.next_token_layout else outputs[1:]


def convolve(of: Any, name: str, side: int, rows: Any, normed: Any, config: Any) -> Any:
    """Rows after one side of a convolution; the rows themselves where there is none."""
    if config.convolution is None:
        return rows
    taps, width = config.convolution.kernel_size, config.convolution.group_size
    groups = config.hidden_size // width
    found = []
    for i in range(len(rows)):
        deltas = of[f"{name}.kernel_projection"] @ normed[i]
        total = np.zeros(config.hidden_size)
        for c in range(config.hidden_size):
            for t in range(min(taps, i + 1)):
                delta = deltas[(side * taps + t) * groups + c // width]
                total[c] += (of[f"{name}.base_kernel"][side, t, c] + delta) * rows[i - t][c]
        found.append(total)
    return found


def rms(row: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return row / math.sqrt(float((row**2).mean()) + CONFIG.rms_norm_eps) * weight


def heads_of(row: np.ndarray, norm: np.ndarray, position: int, config: Any) -> list[np.ndarray]:
    """A projection split into heads, normed and rotated."""
    found = []
    half = config.head_dim // 2
    for head in row.reshape(-1, config.head_dim):
        head, rotated = rms(head, norm), np.empty(config.head_dim)
        for i in range(half):
            angle = position * config.rope_theta ** (-2 * i / config.head_dim)
            first, second = head[i], head[i + half]
            rotated[i] = first * math.cos(angle) - second * math.sin(angle)
            rotated[i + half] = second * math.cos(angle) + first * math.sin(angle)
        found.append(rotated)
    return found


def edit(
    folder: Path, changes: dict[str, Any], tensors: Callable[[Any], Any] | None = None
) -> None:
    """Change config.json and the tensors of a checkpoint.

    A dotted name is an option of a nested object, None removes one. `tensors` changes the dict of
    tensors, or returns another one.
    """
    content = json.loads((folder / "config.json").read_text())
    for name, value in changes.items():
        *outer, last = name.split(".")
        inner = content
        for key in outer:
            inner = inner.setdefault(key, {})
        inner.pop(last, None)
        if value is not None:
            inner[last] = value
    (folder / "config.json").write_text(json.dumps(content))
    if tensors is not None:
        stored = load_file(folder / "model.safetensors")
        changed = tensors(stored)
        stored = changed if isinstance(changed, dict) else stored
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
