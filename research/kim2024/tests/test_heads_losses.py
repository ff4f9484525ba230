"""Gradients of heads: the fused cross entropy and the chunked passes against plain autograd."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F

from blockwise_models import HEADS, VOCAB, looping_text, random_model
from lattice_bpd.models import BlockwiseLM
from lattice_bpd_kim2024.heads import losses
from lattice_bpd_kim2024.heads.losses import LossPart, add_gradients, label_view
from lattice_bpd_kim2024.heads.options import HeadText, TrainOptions, sample_step

T = 12


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("bias", [False, True])
def test_fused_cross_entropy_is_autograds(seed, bias, monkeypatch):
    monkeypatch.setattr(losses, "_ROWS", (1, 1 + 3 * seed))  # chunks of many sizes
    generator = torch.Generator().manual_seed(seed)
    embedding = nn.Linear(7, 23, bias=bias)
    states = torch.randn(20, 7, generator=generator) * 4
    labels = torch.randint(23, (20,), generator=generator)
    weights = torch.rand(20, generator=generator)
    wanted = [states.clone().requires_grad_(), *embedding.parameters()]
    plain = F.cross_entropy(embedding(wanted[0]), labels, reduction="none")
    expected = torch.autograd.grad((plain * weights).sum() * 3, wanted)
    found_states = states.clone().requires_grad_()
    total, each = losses.weighted_cross_entropy(
        embedding, found_states, labels, weights, torch.float32
    )
    found = torch.autograd.grad(total * 3, [found_states, *embedding.parameters()])
    torch.testing.assert_close(each, plain.detach(), rtol=1e-5, atol=1e-5)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_fused_cross_entropy_survives_huge_logits_and_a_frozen_embedding():
    embedding = nn.Linear(2, 5, bias=False).requires_grad_(False)
    states = torch.full((3, 2), 1e4, requires_grad=True)
    total, each = losses.weighted_cross_entropy(
        embedding, states, torch.tensor([0, 1, 2]), torch.ones(3), torch.float32
    )
    total.backward()
    assert torch.isfinite(each).all()
    assert torch.isfinite(states.grad).all()
    assert embedding.weight.grad is None


def test_an_embedding_that_is_no_linear_layer_is_refused():
    class Scaled(nn.Linear):
        def forward(self, rows):
            return 2 * super().forward(rows)

    with pytest.raises(TypeError, match=r"output embedding is a Scaled; expected nn\.Linear"):
        losses.weighted_cross_entropy(
            Scaled(2, 3), torch.zeros(1, 2), torch.zeros(1).long(), torch.ones(1), torch.float32
        )


def plain_loss(model: BlockwiseLM, part: LossPart) -> torch.Tensor:
    """The same loss by autograd alone, all logits at once."""
    output = model(part.pieces[:, :T])
    labels = label_view(part.pieces, HEADS)
    total = torch.zeros(())
    for head in part.heads:
        if head == 1:
            logits, wanted = output.logits.flatten(0, 1), labels[:, 0]
        else:
            hidden = output.hidden.flatten(0, 1)[part.positions]
            logits = model.head_logits(hidden)[:, head - 2]
            wanted = labels[part.positions, head - 1]
        each = F.cross_entropy(logits, wanted, reduction="sum")
        total = total + part.row_weights[head - 1] * each
    return total


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@pytest.mark.parametrize("train_base", [True, False])
@pytest.mark.parametrize("heads", [tuple(range(1, HEADS + 1)), (3,), (1,)])
def test_gradients_of_a_part_are_autograds(architecture, train_base, heads, monkeypatch):
    monkeypatch.setattr(losses, "_HEAD_ROWS", 12)  # several turns
    if not train_base:
        heads = tuple(head for head in heads if head > 1) or (2,)
    model = random_model(architecture)
    model.base.requires_grad_(train_base)
    pieces = torch.randint(VOCAB, (3, T + HEADS), generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([0, 3, 5, 11, 12, 20, 35])
    part = LossPart(pieces, positions, torch.linspace(0.1, 0.6, HEADS), heads)
    try:
        model.zero_grad()
        plain_loss(model, part).backward()
        expected = {n: w.grad for n, w in model.named_parameters() if w.grad is not None}
        model.zero_grad()
        add_gradients(model, part, "fp32")
        for name, weight in model.named_parameters():
            if name in expected:
                torch.testing.assert_close(weight.grad, expected[name], rtol=2e-4, atol=2e-5)
            else:
                assert weight.grad is None or not weight.grad.any()
    finally:
        model.zero_grad()
        model.base.requires_grad_(True)


def test_draws_depend_on_the_step_alone_and_fit_the_text():
    text = HeadText(looping_text(100))
    options = TrainOptions(batch_size=2, accumulate=3, sequence_length=T, head_fraction=0.25)
    draw = sample_step(text, options, HEADS, 5)
    again = sample_step(text, options, HEADS, 5)
    assert torch.equal(draw.starts, again.starts)
    assert torch.equal(draw.positions, again.positions)
    assert not torch.equal(draw.starts, sample_step(text, options, HEADS, 6).starts)
    assert draw.starts.shape == (6,)
    assert int(draw.starts.max()) <= 100 - T - HEADS
    assert draw.positions.shape == (18,)
    assert draw.heads == tuple(range(1, HEADS + 1))


def test_rows_are_taken_whole_and_behind_their_prompt():
    text = HeadText(np.arange(3 * (T + HEADS), dtype=np.int32), T + HEADS, first_position=4)
    options = TrainOptions(batch_size=5, sequence_length=T, head_fraction=1.0, train_base=False)
    draw = sample_step(text, options, HEADS, 0)
    assert set((draw.starts % (T + HEADS)).tolist()) == {0}
    assert len(draw.positions) == 5 * (T - 4)
    assert int((draw.positions % T).min()) == 4
    assert draw.heads == tuple(range(2, HEADS + 1))


def test_one_head_a_step_comes_to_every_head():
    text = HeadText(looping_text(100))
    for train_base, first in ((True, 1), (False, 2)):
        options = TrainOptions(sequence_length=T, train_base=train_base, one_head=True)
        drawn = [sample_step(text, options, HEADS, step).heads for step in range(80)]
        assert {len(heads) for heads in drawn} == {1}
        assert {head for (head,) in drawn} == set(range(first, HEADS + 1))
