"""Fused, chunked cross entropy through a large output embedding.

Only one chunk of logits is in memory at a time. It is exponentiated in place, gives the loss, and
is multiplied with the embedding (and with the states, if the embedding is trained) before the next
chunk overwrites it. So memory does not grow with rows x V and nothing is computed twice. The
softmax matrix is never normalized: the narrow products are divided by its row sums instead.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from lattice_bpd.models.first_head import FirstHead

_CHUNK_BYTES = {"cpu": 26 << 20, "cuda": 512 << 20}  # on a CPU, fit the last-level cache
_ROWS = (16, 512)  # minimum and maximum rows per chunk


def weighted_cross_entropy(
    embedding: nn.Linear, states: Tensor, labels: Tensor, weights: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Weighted sum of cross entropies, whose gradients are computed in the forward pass.

    Args:
        embedding: the output embedding, (V, D) with or without bias; head 1's own network, if it
            has one, is the caller's.
        states: (N, D) float.
        labels: (N,) int64, 0..V-1.
        weights: (N,) float32; no gradient flows to them.
        dtype: dtype of the matrix products; losses and exponentials are always float32.

    Returns:
        total: () float32, sum of weights * losses; differentiable once, with respect to
            states and, if it requires a gradient, the embedding.
        losses: (N,) float32, nats; without gradient.

    Raises:
        TypeError: an embedding with another forward than nn.Linear.
    """
    if type(embedding).forward not in (nn.Linear.forward, FirstHead.forward):
        raise TypeError(
            f"heads: the target's output embedding is a {type(embedding).__name__}; expected "
            "nn.Linear; load the target without quantization or adapters"
        )
    outputs = _Fused.apply(  # type: ignore[no-untyped-call]
        states, embedding.weight, embedding.bias, labels, weights, dtype
    )
    return cast("tuple[Tensor, Tensor]", outputs)


def chunk_rows(vocab_size: int, device: torch.device) -> int:
    """Rows of logits per chunk."""
    fitting = _CHUNK_BYTES.get(device.type, _CHUNK_BYTES["cpu"]) // (4 * vocab_size)
    return max(_ROWS[0], min(_ROWS[1] if device.type == "cpu" else 1 << 14, fitting))


class _Fused(torch.autograd.Function):
    """Computes gradients in the forward pass and scales them in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        weights: Tensor,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """See weighted_cross_entropy."""
        chunk = chunk_rows(len(weight), states.device)
        with torch.no_grad(), torch.autocast(states.device.type, enabled=False):
            inputs = (states, weight, bias)
            grads = _Gradients(
                *(
                    torch.zeros_like(tensor) if tensor is not None and needed else None
                    for tensor, needed in zip(inputs, ctx.needs_input_grad, strict=False)
                )
            )
            losses = torch.empty(len(states), device=states.device)
            buffer = states.new_empty(min(chunk, len(states)), len(weight), dtype=torch.float32)
            matrix = weight.to(dtype)  # (V, D)
            for begin in range(0, len(states), chunk):
                part = slice(begin, begin + chunk)
                rows = states[part].to(dtype)
                powers, sums, losses[part] = _exponentials(rows, matrix, bias, labels[part], buffer)
                grads.add(part, rows, matrix, labels[part], weights[part], powers, sums)
        ctx.gradients = grads
        ctx.mark_non_differentiable(losses)
        return (losses * weights).sum(), losses

    @staticmethod
    def backward(ctx: Any, total_grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        """Scales the gradients of forward in place, so this works once."""
        gradients, ctx.gradients = ctx.gradients, _Gradients(None, None, None)
        scaled = [None if grad is None else grad.mul_(total_grad) for grad in gradients]
        return (*scaled, None, None, None)


class _Gradients(NamedTuple):
    """Gradients of the weighted sum; None if not required."""

    states: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    def add(
        self,
        part: slice,
        rows: Tensor,
        matrix: Tensor,
        labels: Tensor,
        weights: Tensor,
        powers: Tensor,
        sums: Tensor,
    ) -> None:
        """Adds a chunk: with p = powers / sums, each row's gradient is weight (p - one-hot)."""
        share = (weights / sums).unsqueeze(1)  # (C, 1)
        weights = weights.unsqueeze(1)
        low = powers.to(rows.dtype)
        if self.states is not None:
            change = (low @ matrix) * share
            self.states[part] = change.sub_(matrix[labels] * weights)
        if self.weight is not None:
            _add_product(self.weight, low, rows * share)
            self.weight.index_add_(0, labels, (rows * -weights).to(self.weight.dtype))
        if self.bias is not None:
            self.bias.add_((powers * share).sum(dim=0))
            self.bias.index_add_(0, labels, -weights.squeeze(1).to(self.bias.dtype))


def _exponentials(
    rows: Tensor, matrix: Tensor, bias: Tensor | None, labels: Tensor, buffer: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """exp(logits - largest) (C, V) in `buffer`, their sums (C,) and the losses (C,)."""
    logits = buffer[: len(rows)]
    if rows.dtype == torch.float32:
        torch.mm(rows, matrix.t(), out=logits)
    else:
        logits.copy_(rows @ matrix.t())
    if bias is not None:
        logits += bias
    largest = logits.amax(dim=1)
    label_logits = logits.gather(1, labels.unsqueeze(1)).squeeze(1)
    powers = logits.sub_(largest.unsqueeze(1)).exp_()
    sums = powers.sum(dim=1)
    return powers, sums, sums.log() + largest - label_logits


def _add_product(total: Tensor, powers: Tensor, rows: Tensor) -> None:
    """Adds powers^T (V, C) times rows (C, D) to total (V, D)."""
    if total.dtype == powers.dtype == torch.float32:
        total.addmm_(powers.t(), rows)
    else:
        total += powers.t() @ rows.to(powers.dtype)
