"""Training of block drafters: samples, gradients, what is learnt, and what is refused."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from block_drafters import CONFIG, VARIANTS, build_drafter
from blockwise_models import VOCAB, build_base, looping_text, trained_model
from lattice_bpd.decode import generate
from lattice_bpd_drafters import block_training as losses
from lattice_bpd_drafters.block_drafter import BlockDrafter
from lattice_bpd_drafters.block_run import (
    find_matches,
    measure_drafter,
    simulate,
    train_block_drafter,
)
from lattice_bpd_drafters.block_training import BlockTrainOptions
from lattice_bpd_drafters.texts import Pieces, make_texts
from lattice_bpd_kim2024.heads.self_generated import generate_texts

PROMPT = 4
SHORT = BlockTrainOptions(steps=80, anchors=12, first_position=PROMPT - 1, warmup=5)


@functools.cache
def greedy_rows() -> np.ndarray:
    """(40, 30) ids that the trained target generates after prompts of noisy text."""
    prompts = looping_text()[: 40 * PROMPT].reshape(40, PROMPT)
    return generate_texts(trained_model().base, prompts, 26)


@functools.cache
def trained_drafter() -> BlockDrafter:
    return train_block_drafter(trained_model().base, list(greedy_rows()[8:]), CONFIG, SHORT)


def test_a_trained_drafter_drafts_what_the_target_generates():
    target, held = trained_model().base, make_texts(greedy_rows()[:8], PROMPT - 1, "test")
    one_step = dataclasses.replace(SHORT, steps=1)
    start = train_block_drafter(target, list(greedy_rows()), CONFIG, one_step)
    untrained = measure_drafter(start, target, held, 30)
    trained = measure_drafter(trained_drafter(), target, held, 30)
    assert untrained.block_efficiency < 1.5
    assert trained.block_efficiency > 3.0
    assert len(trained.accuracies) == CONFIG.num_slots
    assert trained.positions == 8 * (30 - CONFIG.num_slots - (PROMPT - 1))


def test_the_simulated_steps_are_those_of_decoding():
    drafter, target = trained_drafter(), trained_model().base
    compared = 0
    for row in greedy_rows()[:6]:
        result = generate(target, row[:PROMPT].tolist(), "bpd", heads=drafter, max_new_tokens=26)
        assert result.token_ids == row[PROMPT:].tolist()
        # The first anchor is the token after the prompt, which prefill gives.
        steps = simulate(find_matches(drafter, target, torch.tensor(row)[None].long(), PROMPT))
        count = len(steps) - 1  # the last ones reach the end of the text
        assert [step - 1 for step in steps[:count]] == result.stats.accept_lengths[:count]
        compared += count
    assert compared > 20
    assert simulate(np.array([[1, 1], [0, 1], [1, 1], [1, 0], [0, 0]], bool)) == [3, 2]


@pytest.mark.parametrize("variant", ["fill_in", "next_token"])
@pytest.mark.parametrize("distillation", [0.0, 0.3])
def test_gradients_are_those_of_the_loss_in_one_piece(variant, distillation, monkeypatch):
    monkeypatch.setattr(losses, "chunk_rows", lambda *_: 7)
    drafter = build_drafter(**VARIANTS[variant])
    target = build_base("llama").eval().requires_grad_(False)
    drafter.attach(target)
    ids = torch.randint(VOCAB - 1, (2, 20))
    anchors = torch.tensor([[0, 5, 9], [3, 4, 15]])
    slots = drafter.num_slots
    weights = torch.tensor(BlockTrainOptions(gamma=2.0).slot_weights(slots))
    sums = losses.add_gradients(drafter, target, Pieces(ids, anchors), weights, distillation)
    gradients = {name: weight.grad.clone() for name, weight in drafter.named_parameters()}
    drafter.zero_grad()

    output = target(ids, output_hidden_states=True)
    features = torch.cat([output.hidden_states[0], output.hidden_states[1]], -1)  # layers -1, 0
    logits = drafter.logits(drafter.train_states(features, ids, anchors))
    expected, total = torch.zeros(slots), torch.zeros(())
    for text, row in enumerate(anchors.tolist()):
        for block, anchor in enumerate(row):
            for slot in range(slots):
                label = ids[text, anchor + 1 + slot]
                log_probs = logits[text, block, slot].log_softmax(-1)
                probs = output.logits[text, anchor + slot].softmax(-1)
                expected[slot] -= log_probs[label].detach()
                hard, soft = -log_probs[label], -(probs * log_probs).sum()
                mixed = (1 - distillation) * hard + distillation * soft
                total = total + float(np.exp(-slot / 2.0)) * mixed
    (total / sum(np.exp(-slot / 2.0) for slot in range(slots))).backward()
    torch.testing.assert_close(sums, expected, rtol=1e-5, atol=1e-4)
    for name, weight in drafter.named_parameters():
        torch.testing.assert_close(gradients[name], weight.grad, rtol=1e-4, atol=1e-5)


def test_samples_cover_texts_of_all_lengths():
    lengths = [9, 40, 14]
    rows = [np.arange(length) + 100 * text for text, length in enumerate(lengths)]
    texts = make_texts(rows, 4, "test")
    seen: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    for step in range(300):
        ids, anchors = texts.sample(12, 5, 3, 3, seed=1, step=step)
        for row, positions in zip(ids, anchors, strict=True):
            text = int(row[0]) // 100
            size = min(12, lengths[text])
            assert row[:size].tolist() == list(range(int(row[0]), int(row[0]) + size))
            assert not row[size:].any()
            assert positions.tolist() == sorted(positions.tolist())
            assert int(positions[-1]) + 3 < size
            seen[text] |= {int(row[position]) % 100 for position in positions}
    assert seen == {n: set(range(4, length - 3)) for n, length in enumerate(lengths)}
    one, again = (texts.sample(12, 5, 3, 3, seed=1, step=7) for _ in range(2))
    assert all(torch.equal(*parts) for parts in zip(one, again, strict=True))
    other = texts.sample(12, 5, 3, 3, seed=2, step=7)
    assert not torch.equal(one.anchors, other.anchors)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"distillation": 1.5}, "distillation is 1.5; expected 0..1"),
        ({"sequence_length": 65}, "the target has positions for 64"),
        ({"first_position": 30}, "the shortest of 20 tokens; expected 34 or more"),
    ],
)
def test_options_out_of_range_are_refused(changed, message):
    options = dataclasses.replace(BlockTrainOptions(steps=1), **changed)
    with pytest.raises(ValueError, match=message):
        train_block_drafter(build_base("llama"), np.zeros((2, 20), np.int32), CONFIG, options)
