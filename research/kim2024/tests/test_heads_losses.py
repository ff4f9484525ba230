"""Losses, gradients and optimizers of heads, against autograd and torch's own."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F

from blockwise_models import HEADS, POSITIONS, VOCAB, looping_text, model_of, random_model
from lattice_bpd_kim2024.blockwise import BlockwiseLM
from lattice_bpd_kim2024.heads import losses
from lattice_bpd_kim2024.heads.joint import TrainOptions, train_blockwise
from lattice_bpd_kim2024.heads.losses import LossPart, add_gradients, label_view
from lattice_bpd_kim2024.heads.optimizers import CpuMuon, orthogonalize
from lattice_bpd_kim2024.heads.options import HeadText
from lattice_bpd_kim2024.heads.validation import measure_heads
from lattice_bpd_kim2024.small_models import build_small_gpt

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


def plain_loss(model: BlockwiseLM, part: LossPart) -> torch.Tensor:
    """The same loss by autograd alone, all logits at once."""
    states = model.hidden_states(part.pieces[:, :T])
    labels = label_view(part.pieces, HEADS)
    total = torch.zeros(())
    for head in part.heads:
        if head == 1:
            logits, wanted = model.output_embedding(states).flatten(0, 1), labels[:, 0]
        else:
            hidden = states.flatten(0, 1)[part.positions]
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


def ids(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def test_losses_are_cross_entropies_of_later_and_later_tokens():
    model, batch = model_of("gpt2"), ids(2, 9 + HEADS)
    rows = HeadText(batch.flatten().numpy().astype(np.int32), row_length=9 + HEADS)
    losses = torch.tensor(measure_heads(model, rows, 9).losses)
    with torch.inference_mode():
        first = model.base(batch[:, :9]).logits
        others = model.head_logits(model.hidden_states(batch[:, :9]))  # (2, 9, H, V)
        for head in range(HEADS):
            logits = first if head == 0 else others[:, :, head - 1]
            labels = batch[:, 1 + head : 10 + head]
            expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
            torch.testing.assert_close(losses[head], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", ["bf16", "auto"])
def test_training_in_other_precisions(precision):
    torch.manual_seed(0)
    model = build_small_gpt(VOCAB, hidden_size=32, num_layers=1, num_heads=HEADS)
    options = TrainOptions(steps=6, batch_size=8, sequence_length=24, warmup=3, head_fraction=0.5,
                           precision=precision)  # fmt: skip
    seen: list[list[float]] = []
    train_blockwise(model, looping_text(), options, lambda report: seen.append(report.losses))
    assert len(seen) == 6
    assert sum(seen[-1]) < sum(seen[0])


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (np.arange(10), {}, r"shape \(10,\); expected one sequence of 29 or more"),
        (np.full(100, VOCAB), {}, f"token id {VOCAB}"),
        (looping_text(100), {"precision": "fp8"}, "precision is 'fp8'"),
        (looping_text(100), {"steps": 0}, "steps 0"),
        (looping_text(100), {"head_fraction": 0.0}, "head_fraction is 0.0"),
        (looping_text(500), {"sequence_length": POSITIONS + 1}, f"positions for {POSITIONS}"),
    ],
)
def test_bad_training_requests_are_refused(text, options, message):
    settings = TrainOptions(**{"sequence_length": 24, "precision": "fp32", **options})
    with pytest.raises(ValueError, match=message):
        train_blockwise(model_of("gpt2"), text, settings)


@pytest.mark.parametrize("shape", [(48, 16), (16, 48), (32, 32)])
def test_orthogonalized_matrices_have_singular_values_near_one(shape):
    torch.manual_seed(0)
    matrices = torch.randn(3, *shape)
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    found = orthogonalize(matrices)
    values = torch.linalg.svdvals(found)
    assert values.max() < 1.25
    assert values[:, : min(shape) // 2].min() > 0.65
    # In the bases of the singular vectors it is diagonal.
    off = left.transpose(1, 2) @ found @ right.transpose(1, 2)
    off = off - torch.diag_embed(off.diagonal(dim1=1, dim2=2))
    assert off.abs().max() < 1e-4


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_steps_are_those_of_torch(weight_decay):
    torch.manual_seed(1)
    start = [torch.randn(48, 16), torch.randn(16, 48), torch.randn(48, 16)]
    results = []
    for kind in (torch.optim.Muon, CpuMuon):
        torch.manual_seed(2)
        weights = [torch.nn.Parameter(weight.clone()) for weight in start]
        optimizer = kind(weights, lr=0.02, weight_decay=weight_decay)
        for _ in range(6):
            for weight in weights:
                weight.grad = torch.randn_like(weight)
            optimizer.step()
        results.append(weights)
        assert set(optimizer.state[weights[0]]) == {"momentum_buffer"}
    for expected, found, first in zip(*results, start, strict=True):
        moved = (expected - first).abs().mean()
        assert (expected - found).abs().mean() < 0.02 * moved  # bfloat16's rounding


def test_other_options_take_torchs_own_step():
    torch.manual_seed(3)
    start, grad = torch.randn(16, 8), torch.randn(16, 8)
    results = []
    for kind in (torch.optim.Muon, CpuMuon):
        weight = torch.nn.Parameter(start.clone())
        optimizer = kind([weight], lr=0.02, ns_steps=3)
        weight.grad = grad.clone()
        optimizer.step()
        results.append(weight.detach())
    assert torch.equal(*results)
