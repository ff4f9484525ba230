"""The pretrained model: its file against a forward pass of our own, and damaged files."""

from __future__ import annotations

import struct

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from lattice_bpd import FormatError
from lattice_bpd_kim2024.llama2c import load_llama2c, read_llama2c

EPSILON = 1e-5


@pytest.fixture(scope="module")
def stories_file(shared_data):
    return shared_data / "stories260K" / "stories260K.bin"


def rms_norm(states: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return states / np.sqrt((states**2).mean(-1, keepdims=True) + EPSILON) * weight


def turn_pairs(states: np.ndarray) -> np.ndarray:
    """Rotary positions on (T, heads, d): pair i turned by t / 10000^(2i/d), as complex numbers."""
    length, _, width = states.shape
    angles = np.arange(length)[:, None] / 10000.0 ** (np.arange(0, width, 2) / width)
    turned = (states[..., 0::2] + 1j * states[..., 1::2]) * np.exp(1j * angles)[:, None]
    return np.stack([turned.real, turned.imag], axis=-1).reshape(states.shape)


def forward(path, token_ids: list[int]) -> np.ndarray:
    """(T, V) logits in float64 numpy, straight from the file's tensors and the paper's formulas."""
    sizes, tensors = read_llama2c(path)
    w = {name: tensor.double().numpy() for name, tensor in tensors.items()}
    heads, length = sizes.num_attention_heads, len(token_ids)
    group = heads // sizes.num_key_value_heads
    states = w["embedding"][token_ids]
    for layer in range(sizes.num_layers):
        x = rms_norm(states, w["attention_norm"][layer])
        queries = turn_pairs((x @ w["wq"][layer].T).reshape(length, heads, -1))
        keys = turn_pairs((x @ w["wk"][layer].T).reshape(length, heads // group, -1))
        values = (x @ w["wv"][layer].T).reshape(length, heads // group, -1)
        mixed = np.empty_like(queries)
        for head in range(heads):
            scores = queries[:, head] @ keys[:, head // group].T / np.sqrt(queries.shape[-1])
            scores[np.triu_indices(length, 1)] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            mixed[:, head] = weights @ values[:, head // group]
        states = states + mixed.reshape(length, -1) @ w["wo"][layer].T
        x = rms_norm(states, w["ffn_norm"][layer])
        gate = x @ w["w1"][layer].T
        inner = gate / (1 + np.exp(-gate)) * (x @ w["w3"][layer].T)
        states = states + inner @ w["w2"][layer].T
    return rms_norm(states, w["final_norm"]) @ w.get("output", w["embedding"]).T


def test_stories_logits_equal_an_independent_forward_pass(stories_file):
    model = load_llama2c(stories_file)
    rng = np.random.default_rng(0)
    story = [1, 403, 407, 261, 378, *rng.integers(3, 512, 60).tolist()]
    with torch.inference_mode():
        logits = model(torch.tensor([story])).logits[0].double().numpy()
    expected = forward(stories_file, story)
    assert np.abs(logits - expected).max() < 2e-4
    assert (logits.argmax(-1) == expected.argmax(-1)).all()


def write_random(path, *, tied: bool = True, vocab: int = 11) -> None:
    sizes = (8, 12, 2, 2, 1, vocab if tied else -vocab, 6)
    header = struct.pack("<7i", *sizes)
    count = 11 * 8 + 2 * (8 + 64 + 32 + 32 + 64 + 8 + 3 * 96) + 8 + 6 * 2 * 2
    count += 0 if tied else 11 * 8
    weights = np.random.default_rng(1).normal(0, 0.4, count).astype("<f4")
    path.write_bytes(header + weights.tobytes())


@pytest.mark.parametrize("tied", [True, False])
def test_stories_format_with_and_without_an_output_embedding_of_its_own(tmp_path, tied):
    write_random(tmp_path / "tiny.bin", tied=tied)
    tokens = [1, 7, 3, 3, 10]
    with torch.inference_mode():
        logits = load_llama2c(tmp_path / "tiny.bin")(torch.tensor([tokens])).logits[0]
    assert np.abs(logits.double().numpy() - forward(tmp_path / "tiny.bin", tokens)).max() < 1e-4


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:20], "has 20 bytes; expected a header of 28"),
        (lambda data: data[:-4], r"bytes; its header \(dim 8, layers 2, vocabulary 11\) needs"),
        (lambda data: data + b"\0", "needs"),
        (lambda data: struct.pack("<i", 9) + data[4:], "multiple of 2 x heads"),
        (lambda data: struct.pack("<i", -8) + data[4:], "seven sizes above 0"),
        (lambda data: data[:40] + struct.pack("<f", np.nan) + data[44:], "embedding holds NaN"),
    ],
)
def test_stories_files_that_are_cut_or_altered(tmp_path, damage, message):
    write_random(tmp_path / "tiny.bin")
    path = tmp_path / "damaged.bin"
    path.write_bytes(damage((tmp_path / "tiny.bin").read_bytes()))
    with pytest.raises(FormatError, match=message):
        load_llama2c(path)
