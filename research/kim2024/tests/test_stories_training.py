"""Training on self-generated text: generation, heads on a frozen target, replay."""

from __future__ import annotations

import copy

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional as F

from blockwise_models import HEADS, VOCAB, looping_text, model_of, plain_greedy
from lattice_bpd_kim2024.blockwise import BlockwiseLM
from lattice_bpd_kim2024.heads.frozen import FrozenOptions, _losses, _read_states, train_frozen
from lattice_bpd_kim2024.heads.self_generated import generate_texts

SLOTS = HEADS - 1
PROMPTS = [[1, 2, 3], [4, 5, 6], [7, 0, 9], [3, 3, 3], [40, 41, 42]]


def test_own_text_is_greedy_output_of_each_prompt():
    model, seen = model_of("llama"), []
    rows = generate_texts(
        model.base, PROMPTS, 12, batch_size=2, on_batch=lambda: seen.append(len(seen))
    )
    assert (rows.dtype, rows.shape, seen) == (np.int32, (5, 15), [0, 1, 2])
    for prompt, row in zip(PROMPTS, rows.tolist(), strict=True):
        assert row == prompt + plain_greedy(model, prompt, 12)


def test_own_text_is_sampled_by_seed_and_temperature():
    base, prompts = model_of("trained").base, np.full((64, 1), 5)

    def write(**options) -> np.ndarray:
        return generate_texts(base, prompts, 6, **options)

    assert np.array_equal(write(temperature=1.0), write(temperature=1.0))
    assert not np.array_equal(write(temperature=1.0), write(temperature=1.0, seed=1))
    # At temperature 1 the next token is the model's own distribution: token 10 follows 5 in 90 %.
    with torch.inference_mode():
        chance = base(torch.tensor([[5]])).logits[0, -1].softmax(-1)[10]
    many = generate_texts(base, np.full((1000, 1), 5), 1, temperature=1.0)
    assert np.mean(many[:, 1] == 10) == pytest.approx(float(chance), abs=0.04)
    assert len(np.unique(write())) <= len(np.unique(write(temperature=5.0)))


@pytest.mark.parametrize(
    ("prompts", "count", "temperature", "message"),
    [
        ([1, 2], 4, 0.0, r"shape \(2,\); expected \(N, P\)"),
        ([[1, VOCAB]], 4, 0.0, "ids 1..48; expected 0..47"),
        ([[1, 2]], 0, 0.0, "max_new_tokens is 0 after prompts of 2 tokens"),
        ([[1, 2]], 64, 0.0, "max_new_tokens is 64 .* at most 64 positions"),
        ([[1, 2]], 4, -1.0, "temperature is -1.0; expected 0 or more"),
    ],
)
def test_own_text_refuses(prompts, count, temperature, message):
    with pytest.raises(ValueError, match=message):
        generate_texts(model_of("gpt2").base, prompts, count, temperature=temperature)


def rows_of_text(count: int = 40, length: int = 40) -> np.ndarray:
    return looping_text(count * length).reshape(count, length)


def test_frozen_states_and_losses_are_those_of_the_model():
    model, rows = model_of("gpt2"), torch.as_tensor(rows_of_text(3).astype(np.int64))
    states, labels = _read_states(model, rows, 0)
    num_positions = 40 - HEADS
    assert states.shape == (3 * num_positions, 32)
    assert labels.shape == (3 * num_positions, SLOTS)
    with torch.inference_mode():
        head_logits = model.head_logits(model.hidden_states(rows)[:, :num_positions])
        losses = _losses(model, states, labels)
        for slot in range(SLOTS):
            wanted = rows[:, 2 + slot : 2 + slot + num_positions]
            logits = head_logits[:, :, slot]
            expected = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
            torch.testing.assert_close(losses[slot], expected, rtol=1e-4, atol=1e-4)


def fresh(seed: int = 0) -> BlockwiseLM:
    base = copy.deepcopy(model_of("trained").base)  # trained at the first call, before the seed
    torch.manual_seed(seed)
    return BlockwiseLM(base, HEADS)


def test_training_on_a_frozen_target_lowers_losses_and_repeats_by_seed():
    seen: list[list[float]] = []
    model, again = fresh(), fresh()
    before = copy.deepcopy(model.base.state_dict())
    options = FrozenOptions(steps=80, batch_size=128, warmup=5)
    report = train_frozen(model, rows_of_text(), options, lambda report: seen.append(report.losses))
    assert (report.step, len(seen), len(report.losses)) == (80, 80, SLOTS)
    assert (np.mean(seen[-5:], axis=0) < 0.5 * np.mean(seen[:3], axis=0)).all()
    train_frozen(again, rows_of_text(), options)
    assert torch.equal(model.heads.outer_weight, again.heads.outer_weight)
    assert all(torch.equal(value, before[name]) for name, value in model.base.state_dict().items())
    assert all(weight.requires_grad for weight in model.base.parameters())
    assert not model.training


def test_training_on_a_frozen_target_refuses():
    model, rows = fresh(), rows_of_text()
    for wrong, message in (
        (rows[0], r"shape \(40,\); expected \(N, T\)"),
        (rows[:, :HEADS], r"T from 6 \(heads \+ 1\) to 65"),
        (rows + 10, "rows has token id 57 at .*; expected 0..47"),
    ):
        with pytest.raises(ValueError, match=message):
            train_frozen(model, wrong, FrozenOptions(steps=1))
