"""The optimizer for matrices, against torch's own."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from lattice_bpd_kim2024.heads.optimizers import CpuMuon, orthogonalize


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
