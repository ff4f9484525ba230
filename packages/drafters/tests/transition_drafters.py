"""Tiny drafters with transition scores, and references that score them one number at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from block_drafters import build_drafter, reference_states, rms
from lattice_bpd_drafters.block_drafter import BlockDrafter
from lattice_bpd_drafters.config import (
    ConvolutionConfig,
    LiLiCorrConfig,
    MarkovConfig,
    SelectorConfig,
)

CONVOLUTION = {"convolution": ConvolutionConfig(kernel_size=2, group_size=8)}
LILICORR = LiLiCorrConfig(
    hidden_size=12, factor_size=10, num_layers=2, num_heads=3, mlp_ratio=1.5, top_k=5,
    logit_scale=3.0, vector_eps=2.0,
)  # fmt: skip
NEXT_TOKEN = {"next_token_layout": True}
MARKOV = MarkovConfig(rank=7, top_k=5)
DRAFTERS: dict[str, dict[str, Any]] = {
    "dflash2": {
        **CONVOLUTION, "scorer": SelectorConfig(rank=6, top_k=5), "logit_scale": 1.5,
        "logit_softcap": 4.0, "embedding_scale": 0.5,
    },
    "three_taps": {
        "convolution": ConvolutionConfig(kernel_size=3, group_size=4),
        "scorer": SelectorConfig(rank=3, top_k=4),
    },
    "dspark": {**NEXT_TOKEN, "scorer": MARKOV},
    "dspark_gated": {**NEXT_TOKEN, "scorer": replace(MARKOV, is_gated=True), "logit_scale": 0.7},
    "dspark_fill_in": {"scorer": MarkovConfig(rank=4, top_k=6)},
    "lilicorr": {"scorer": LILICORR},
    "lilicorr_convolved": {
        **CONVOLUTION, "scorer": replace(LILICORR, hidden_size=32, num_heads=4, num_layers=1)
    },
    "lilicorr_no_layers": {"scorer": replace(LILICORR, num_layers=0, top_k=1)},
}  # fmt: skip


def build(name: str, **changes: Any) -> BlockDrafter:
    """A random drafter in which no tensor is zero or one."""
    drafter = build_drafter(**{"hidden_layers": (0, 1), **DRAFTERS[name], **changes})
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for key, weight in drafter.named_parameters():
            if any(part in key for part in ("conv.", "selector", "head", "lilicorr")):
                noise = torch.randn(weight.shape, generator=generator)
                is_norm = "norm" in key and weight.ndim == 1
                weight.copy_(1.0 + 0.3 * noise if is_norm else 0.4 * noise)
    return drafter


@dataclass
class Lattice:
    """What a LatticeInput of one sequence should hold."""

    token_ids: list[list[int]]
    scores: list[list[float]]
    start: list[float]
    transitions: np.ndarray


def reference_lattice(drafter: BlockDrafter, features: np.ndarray, anchor: int) -> Lattice:
    """The lattice after features (p, n*D_target), in float64."""
    config, weights = drafter.config, weights_of(drafter)
    states = reference_states(drafter, features, anchor)
    output = drafter._shared[1].weight.detach().double().numpy()
    ids, unary, log_probs = [], [], []
    for state in states:
        logits = [config.logit_scale * float(row @ state) for row in output]
        if config.logit_softcap is not None:
            cap = config.logit_softcap
            logits = [cap * math.tanh(logit / cap) for logit in logits]
        total = math.log(sum(math.exp(logit) for logit in logits))
        best = sorted(range(len(logits)), key=lambda v: (-logits[v], v))[: config.scorer.top_k]
        ids.append(best)
        unary.append([logits[v] for v in best])
        log_probs.append([logits[v] - total for v in best])
    if isinstance(config.scorer, LiLiCorrConfig):
        return lilicorr_lattice(drafter, features, states, ids, log_probs)
    pair = selector_pair if isinstance(config.scorer, SelectorConfig) else markov_pair

    def score(slot: int, a: int, i: int) -> float:
        return unary[slot][i] + pair(weights, config, states[slot], a, ids[slot][i])

    top_k, slots = config.scorer.top_k, len(ids)
    start = [score(0, anchor, i) for i in range(top_k)]
    transitions = np.zeros((slots - 1, top_k, top_k))
    for slot in range(1, slots):
        for before in range(top_k):
            for i in range(top_k):
                transitions[slot - 1, before, i] = score(slot, ids[slot - 1][before], i)
    return Lattice(ids, unary, start, transitions)


def selector_pair(weights: Any, config: Any, state: np.ndarray, a: int, b: int) -> float:
    total = 0.0
    before = weights["candidate_selector.predecessor_codebook"][a]
    after = weights["candidate_selector.successor_codebook"][b]
    gate = weights["candidate_selector.hidden_projection.weight"] @ state
    for rank in range(config.scorer.rank):
        total += before[rank] * gate[rank] * after[rank]
    return total


def markov_pair(weights: Any, config: Any, state: np.ndarray, a: int, b: int) -> float:
    before = weights["markov_head.markov_w1.weight"][a]
    if config.scorer.is_gated:
        inputs = np.concatenate([state, before])
        gate = weights["markov_head.gate_proj.weight"] @ inputs
        before = sigmoid(gate + weights["markov_head.gate_proj.bias"]) * before
    return config.logit_scale * float(before @ weights["markov_head.markov_w2.weight"][b])


def lilicorr_lattice(
    drafter: Any, features: np.ndarray, states: Any, ids: Any, log_probs: Any
) -> Lattice:
    config, scorer = drafter.config, drafter.config.scorer
    weights = {name.removeprefix("lilicorr."): w for name, w in weights_of(drafter).items()}
    embedding = drafter._shared[0].weight.detach().double().numpy()
    slots, top_k, width = len(ids), scorer.top_k, scorer.hidden_size

    def linear(name: str, row: np.ndarray) -> np.ndarray:
        return weights[f"{name}.weight"] @ row + weights[f"{name}.bias"]

    nodes = {}
    for s in range(slots):
        for i in range(top_k):
            token = embedding[ids[s][i]]
            token = token if width == config.hidden_size else linear("token_proj", token)
            logp = log_probs[s][i]
            rank = i / (top_k - 1) if top_k > 1 else 0.0
            five = np.array([logp, math.exp(logp), logp - max(log_probs[s]), rank, float(i == 0)])
            five = (five - five.mean()) / math.sqrt(five.var() + 1e-5)
            five = five * weights["feature_norm.weight"] + weights["feature_norm.bias"]
            feature = linear("feature_mlp.down_proj", silu(linear("feature_mlp.up_proj", five)))
            nodes[s, i] = (
                token + linear("pass_hidden_proj", states[s]) + feature
                + weights["slot_embedding"][0, 0, s, 0] + weights["rank_embedding"][0, 0, 0, i]
            )  # fmt: skip
    for number in range(scorer.num_layers):
        nodes = attend(weights, f"layers.{number}", nodes, scorer, config.block_size)
    nodes = {key: rms(row, weights["output_norm.weight"]) for key, row in nodes.items()}
    anchor = np.zeros(width)
    if len(features):
        context = rms(weights["fc.weight"] @ features[-1], weights["hidden_norm.weight"])
        anchor = rms(linear("context_proj", context), weights["anchor_norm.weight"])
    hidden = {
        key: silu(linear("factor_input_proj", np.concatenate([row, anchor, row * anchor])))
        for key, row in nodes.items()
    }

    def unit(row: np.ndarray) -> np.ndarray:
        return row / max(math.sqrt(float(row @ row)), scorer.vector_eps)

    first = unit(linear("anchor_out_head", anchor))
    incoming = {key: unit(linear("in_head", row)) for key, row in hidden.items()}
    outgoing = {key: unit(linear("out_head", row)) for key, row in hidden.items()}
    scale = scorer.logit_scale
    start = [scale * float(first @ incoming[0, i]) for i in range(top_k)]
    transitions = np.zeros((slots - 1, top_k, top_k))
    for s in range(slots - 1):
        for i in range(top_k):
            for j in range(top_k):
                transitions[s, i, j] = scale * float(outgoing[s, i] @ incoming[s + 1, j])
    return Lattice(ids, log_probs, start, transitions)


def attend(weights: Any, name: str, nodes: Any, scorer: Any, block_size: int) -> Any:
    """One layer over all nodes."""
    width = scorer.hidden_size // scorer.num_heads
    normed = {key: rms(row, weights[f"{name}.attn_norm.weight"]) for key, row in nodes.items()}
    joined = {
        key: weights[f"{name}.attn.in_proj_weight"] @ row + weights[f"{name}.attn.in_proj_bias"]
        for key, row in normed.items()
    }
    after = {}
    for query, state in nodes.items():
        mixed = []
        for head in range(scorer.num_heads):
            part = [slice((n * scorer.num_heads + head) * width, (n * scorer.num_heads + head + 1)
                          * width) for n in range(3)]  # fmt: skip
            scores, values = [], []
            for key, row in joined.items():
                distance = query[0] - key[0]
                score = float(joined[query][part[0]] @ row[part[1]]) / math.sqrt(width)
                score += weights["relative_slot_bias"][head, distance + block_size - 1]
                score += weights["same_slot_bias"][head] if distance == 0 else 0.0
                scores.append(score)
                values.append(row[part[2]])
            powers = np.exp(np.array(scores) - max(scores))
            mixed.append((powers / powers.sum()) @ np.array(values))
        output = weights[f"{name}.attn.out_proj.weight"] @ np.concatenate(mixed)
        state = state + output + weights[f"{name}.attn.out_proj.bias"]
        inner = rms(state, weights[f"{name}.mlp_norm.weight"])
        inner = weights[f"{name}.mlp.up_proj.weight"] @ inner + weights[f"{name}.mlp.up_proj.bias"]
        change = weights[f"{name}.mlp.down_proj.weight"] @ silu(inner)
        after[query] = state + change + weights[f"{name}.mlp.down_proj.bias"]
    return after


def weights_of(drafter: BlockDrafter) -> dict[str, np.ndarray]:
    return {name: w.detach().double().numpy() for name, w in drafter.state_dict().items()}


def sigmoid(row: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-row))


def silu(row: np.ndarray) -> np.ndarray:
    return row * sigmoid(row)
