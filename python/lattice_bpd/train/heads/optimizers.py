"""Muon for matrices, AdamW for everything else, one cosine schedule for both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from lattice_bpd.models.blockwise import BlockwiseLM
from lattice_bpd.train.heads.muon import CpuMuon


def build_optimizers(
    model: BlockwiseLM, matrix_lr: float, other_lr: float, base_rate: float = 1.0
) -> list[Optimizer]:
    """Muon over the hidden matrices, AdamW over embeddings, norms and biases.

    Muon steps along the orthogonalised momentum, which is meant for matrices between hidden
    states; an embedding is a table of rows and trains better with AdamW.

    Args:
        model: parameters that need no gradient are left out.
        matrix_lr: peak learning rate of Muon.
        other_lr: peak learning rate of AdamW.
        base_rate: factor on both for the target's own weights.

    Returns:
        One or two optimizers, each group with its peak rate under "peak_lr".
    """
    tables = {
        id(weight)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for weight in module.parameters()
    } | {id(model.output_embedding.weight)}
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    matrices = [weight for weight in trained if weight.ndim == 2 and id(weight) not in tables]
    chosen = {id(weight) for weight in matrices}
    others = [weight for weight in trained if id(weight) not in chosen]
    own = {id(weight) for weight in model.base.parameters()}

    def groups(weights: list[nn.Parameter], rate: float) -> list[dict[str, Any]]:
        """The target's weights and the heads', each with its rate."""
        base = [weight for weight in weights if id(weight) in own]
        heads = [weight for weight in weights if id(weight) not in own]
        pairs = ((base, rate * base_rate), (heads, rate))
        return [{"params": params, "lr": lr} for params, lr in pairs if params]

    optimizers: list[Optimizer] = []
    if matrices:
        optimizers.append(CpuMuon(groups(matrices, matrix_lr), weight_decay=0.0))
    if others:
        optimizers.append(AdamW(groups(others, other_lr), betas=(0.9, 0.95), weight_decay=0.0))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


def build_module_optimizers(
    module: nn.Module, matrix_lr: float, other_lr: float
) -> list[Optimizer]:
    """Muon over a module's matrices, AdamW over embeddings, norms and biases.

    Args:
        module: parameters that need no gradient are left out; an output layer that shares its
            weight with an embedding counts as one.
        matrix_lr: peak learning rate of Muon.
        other_lr: peak learning rate of AdamW.

    Returns:
        One or two optimizers, each group with its peak rate under "peak_lr".
    """
    tables = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    matrices = [weight for weight in trained if weight.ndim == 2 and id(weight) not in tables]
    chosen = {id(weight) for weight in matrices}
    others = [weight for weight in trained if id(weight) not in chosen]
    optimizers: list[Optimizer] = []
    if matrices:
        optimizers.append(CpuMuon(matrices, lr=matrix_lr, weight_decay=0.0))
    if others:
        optimizers.append(AdamW(others, lr=other_lr, betas=(0.9, 0.95), weight_decay=0.0))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


def set_rates(optimizers: Sequence[Optimizer], step: int, steps: int, warmup: int) -> None:
    """Set every group to its peak rate times warm-up times a cosine from 1 down to 0.05.

    Args:
        optimizers: made by build_optimizers.
        step: steps done, 0..steps-1.
        steps: steps in all.
        warmup: steps of the linear warm-up; 0 for none.
    """
    rise = min(1.0, (step + 1) / (warmup + 1))
    fall = 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * step / steps))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * rise * fall


def take_step(optimizers: Sequence[Optimizer], loss: Tensor) -> None:
    """One step down the gradient of a scalar loss; no gradients are left behind."""
    loss.backward()  # type: ignore[no-untyped-call]
    step_all(optimizers)


def step_all(optimizers: Sequence[Optimizer]) -> None:
    """One step down the gradients that are there; none are left behind."""
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
