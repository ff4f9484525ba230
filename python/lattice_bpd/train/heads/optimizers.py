"""Muon for matrices, AdamW for other weights, and their cosine schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from lattice_bpd.models.blockwise import BlockwiseLM
from lattice_bpd.train.heads.muon import CpuMuon


def build_optimizers(
    model: nn.Module,
    matrix_lr: float,
    other_lr: float,
    base_rate: float = 1.0,
    optimizer: str = "muon",
) -> list[Optimizer]:
    """Muon over the hidden matrices, AdamW over embeddings, norms and biases; or AdamW over all.

    Muon's orthogonalized updates suit matrices between hidden states; embeddings, which are tables
    of rows, train better with AdamW. An output layer counts as an embedding if it is a
    BlockwiseLM's or shares its weight with one.

    Args:
        model: parameters that require no gradient are left out.
        matrix_lr: peak learning rate of the matrices.
        other_lr: peak learning rate of other weights.
        base_rate: factor on both for the target of a BlockwiseLM.
        optimizer: "muon", or "adamw" for the matrices too.

    Returns:
        One or two optimizers, each group with its peak rate under "peak_lr".
    """
    modules = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    embeddings = {id(weight) for module in modules for weight in module.parameters()}
    base: set[int] = set()
    if isinstance(model, BlockwiseLM):
        embeddings.add(id(model.output_embedding.weight))
        base = {id(weight) for weight in model.base.parameters()}
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    matrices = [weight for weight in trained if weight.ndim == 2 and id(weight) not in embeddings]
    chosen = {id(weight) for weight in matrices}
    others = [weight for weight in trained if id(weight) not in chosen]

    def groups(weights: list[nn.Parameter], rate: float) -> list[dict[str, Any]]:
        """The target's weights and all others, each with its rate."""
        pairs = (
            ([weight for weight in weights if id(weight) in base], rate * base_rate),
            ([weight for weight in weights if id(weight) not in base], rate),
        )
        return [{"params": params, "lr": lr} for params, lr in pairs if params]

    optimizers: list[Optimizer] = []
    adamw = groups(others, other_lr)
    if optimizer == "adamw":
        adamw = groups(matrices, matrix_lr) + adamw
    elif matrices:
        optimizers.append(CpuMuon(groups(matrices, matrix_lr), weight_decay=0.0))
    if adamw:
        optimizers.append(AdamW(adamw, betas=(0.9, 0.95), weight_decay=0.0))
    for made in optimizers:
        for group in made.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


def set_rates(optimizers: Sequence[Optimizer], step: int, steps: int, warmup: int) -> None:
    """Sets the learning rates: peak rate x linear warm-up x cosine decay from 1 to 0.05.

    Args:
        optimizers: made by build_optimizers.
        step: number of finished steps, 0..steps-1.
        steps: total number of steps.
        warmup: steps of linear warm-up; 0 for none.
    """
    rise = min(1.0, (step + 1) / (warmup + 1))
    fall = 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * step / steps))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * rise * fall


def take_step(optimizers: Sequence[Optimizer], loss: Tensor) -> None:
    """Backpropagates a scalar loss, updates the weights and clears the gradients."""
    loss.backward()  # type: ignore[no-untyped-call]
    step_all(optimizers)


def step_all(optimizers: Sequence[Optimizer]) -> None:
    """Updates the weights by their gradients and clears these."""
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
