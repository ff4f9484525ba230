"""Muon for matrices, AdamW for other weights.

`torch.optim.Muon` orthogonalizes in bfloat16, one matrix at a time. CPUs without bfloat16
instructions emulate those products: a (512, 128) matrix takes ten times as long as in float32.
`CpuMuon` orthogonalizes batches in float32.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from lattice_bpd_kim2024.blockwise import BlockwiseLM

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


class CpuMuon(torch.optim.Muon):
    """`torch.optim.Muon` with float32 Newton-Schulz iterations over stacked matrices.

    Same update rule, defaults and state as the base class, whose own step is used for parameters
    on other devices and for options that differ from its defaults.
    """

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Runs one step; see `torch.optim.Muon.step`."""
        if closure is not None or not self._is_plain():
            loss: float | None = super().step(closure)  # type: ignore[no-untyped-call]
            return loss
        for group in self.param_groups:
            updates: dict[torch.Size, list[tuple[nn.Parameter, Tensor]]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    update = self._momentum(weight, group)
                    updates[update.shape].append((weight, update))
            for shape, pairs in updates.items():
                stacked = orthogonalize(torch.stack([update for _, update in pairs]))
                rate = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for (weight, _), direction in zip(pairs, stacked, strict=True):
                    weight.mul_(1.0 - group["lr"] * group["weight_decay"])
                    weight.add_(direction, alpha=-rate)
        return None

    def _is_plain(self) -> bool:
        """Whether the options are the base class's defaults and all weights are on the CPU."""
        return all(
            group["nesterov"]
            and group["ns_steps"] == _ITERATIONS
            and tuple(group["ns_coefficients"]) == _COEFFICIENTS
            and group["adjust_lr_fn"] in (None, "original")
            and all(weight.device.type == "cpu" for weight in group["params"])
            for group in self.param_groups
        )

    def _momentum(self, weight: nn.Parameter, group: dict[str, Any]) -> Tensor:
        """Nesterov momentum of the gradient."""
        assert weight.grad is not None
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight.grad)
        buffer: Tensor = state["momentum_buffer"]
        buffer.lerp_(weight.grad, 1.0 - group["momentum"])
        return weight.grad.lerp(buffer, group["momentum"])


def orthogonalize(matrices: Tensor) -> Tensor:
    """Approximate U V^T of each matrix U S V^T by Newton-Schulz iterations.

    Args:
        matrices: (N, A, B) float32.

    Returns:
        (N, A, B) float32, singular values between about 0.7 and 1.2.

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks".
    """
    a, b, c = _COEFFICIENTS
    is_tall = matrices.shape[1] > matrices.shape[2]
    states = matrices.transpose(1, 2) if is_tall else matrices
    states = states / states.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(_ITERATIONS):
        gram = states @ states.transpose(1, 2)
        update = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        states = torch.baddbmm(states, update, states, beta=a)
    return states.transpose(1, 2) if is_tall else states


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
        One or two optimizers.
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
    return optimizers
