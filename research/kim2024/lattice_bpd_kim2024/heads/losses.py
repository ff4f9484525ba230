"""The loss of a blockwise LM, one cross entropy per head, and its gradients.

Loss = sum_h lambda_h L_h, where L_h is the cross entropy of head h against the token h positions
later (Kim et al. 2024, appendix C.1). The target runs once for all heads. Heads and output
embedding then run forward and backward in chunks of positions that leave only the gradient of the
hidden states, so memory grows neither with heads x V nor with heads x positions.

In the cross entropy only one chunk of logits is in memory at a time. It is exponentiated in place,
gives the loss, and is multiplied with the embedding (and with the states, if the embedding is
trained) before the next chunk overwrites it. So memory does not grow with rows x V and nothing is
computed twice. The softmax matrix is never normalized: the narrow products are divided by its row
sums instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lattice_bpd.models.heads import BlockwiseHeads
from lattice_bpd.models.linear import CpuLinear
from lattice_bpd_kim2024.blockwise import BlockwiseLM
from lattice_bpd_kim2024.heads.first_head import FirstHead, first_head_states, project_states

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
    if type(embedding).forward not in (nn.Linear.forward, CpuLinear.forward, FirstHead.forward):
        raise TypeError(
            f"heads: the target's output embedding is a {type(embedding).__name__}; expected "
            "nn.Linear; load the target without quantization or adapters"
        )
    outputs = _Fused.apply(  # type: ignore[no-untyped-call]
        states, embedding.weight, embedding.bias, labels, weights, dtype
    )
    return cast("tuple[Tensor, Tensor]", outputs)


def _chunk_rows(vocab_size: int, device: torch.device) -> int:
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
        chunk = _chunk_rows(len(weight), states.device)
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


_HEAD_ROWS = 2048  # rows of head states that are in memory at once


class LossPart(NamedTuple):
    """The part of a step's loss that one forward pass computes.

    Attributes:
        pieces: (B, T+h) int64 sequences; the last h tokens are only labels.
        positions: (N,) int64, b * T + t: where draft heads are evaluated.
        row_weights: (h,) float32, lambda_h / number of positions of head h in the step.
        heads: heads to train, 1..h, sorted.
    """

    pieces: Tensor
    positions: Tensor
    row_weights: Tensor
    heads: tuple[int, ...]


def add_gradients(model: BlockwiseLM, part: LossPart, precision: str) -> Tensor:
    """Adds the gradients of a part of the loss to the .grad of all trained parameters.

    Args:
        model: target and heads; the target is frozen if its weights require no gradient.
        part: see LossPart. Head 1 is evaluated at all positions.
        precision: "fp32" or "bf16" (autocast).

    Returns:
        (h,) float32: each head's losses summed over its positions; 0 for heads not trained.
    """
    train_base = model.output_embedding.weight.requires_grad
    labels = label_view(part.pieces, model.num_heads)  # (B*T, h)
    sums = torch.zeros(model.num_heads, device=labels.device)
    with torch.set_grad_enabled(train_base):
        hidden = read_hidden(model, part.pieces, precision)  # (B*T, D)
    hidden_grad = torch.zeros_like(hidden) if train_base else None
    if 1 in part.heads and hidden_grad is not None:
        rows = hidden.detach().requires_grad_()
        weights = part.row_weights[0].expand(len(rows))
        with autocast(model, precision):
            states = first_head_states(model.output_embedding, rows)
        losses = _backward(model, states, labels[:, 0], weights, precision)
        hidden_grad += cast(Tensor, rows.grad)
        sums[0] = losses.sum()
    slots = [head - 2 for head in part.heads if head > 1]
    for positions in _split(part.positions, _HEAD_ROWS // max(1, len(slots))) if slots else ():
        rows = hidden[positions].detach().requires_grad_(train_base)
        with autocast(model, precision):
            states = cast(BlockwiseHeads, model.heads)(rows, slots)
        targets = labels[positions][:, [slot + 1 for slot in slots]]  # (n, S)
        weights = part.row_weights[[slot + 1 for slot in slots]].expand(targets.shape)
        losses = _backward(
            model, states.flatten(0, 1), targets.flatten(), weights.flatten(), precision
        )
        sums[[slot + 1 for slot in slots]] += losses.view(targets.shape).sum(dim=0)
        if hidden_grad is not None:
            hidden_grad.index_add_(0, positions, cast(Tensor, rows.grad))
    if hidden_grad is not None:
        hidden.backward(hidden_grad)  # type: ignore[no-untyped-call]
    return sums


def _backward(
    model: BlockwiseLM, states: Tensor, labels: Tensor, weights: Tensor, precision: str
) -> Tensor:
    """Backpropagates from states (N, D) to their leaves; returns the (N,) losses."""
    embedding = model.output_embedding
    dtype = torch.bfloat16 if precision == "bf16" else embedding.weight.dtype
    total, losses = weighted_cross_entropy(embedding, states, labels, weights, dtype)
    total.backward()  # type: ignore[no-untyped-call]
    return losses


def _split(positions: Tensor, count: int) -> tuple[Tensor, ...]:
    return torch.split(positions, count) if len(positions) else ()


def autocast(model: BlockwiseLM, precision: str) -> torch.autocast:
    """bfloat16 autocast on the model's device for "bf16"; disabled for "fp32"."""
    return torch.autocast(model.device.type, torch.bfloat16, enabled=precision == "bf16")


def read_hidden(model: BlockwiseLM, pieces: Tensor, precision: str) -> Tensor:
    """The target's hidden states for pieces (B, T+h), as (B*T, D) float32."""
    length = pieces.shape[1] - model.num_heads
    with autocast(model, precision):
        hidden = model.hidden_states(pieces[:, :length])
    return hidden.flatten(0, 1).float()


def label_view(pieces: Tensor, num_heads: int) -> Tensor:
    """The tokens 1..h positions after each position of pieces (B, T+h), as (B*T, h)."""
    return pieces[:, 1:].unfold(1, num_heads, 1).flatten(0, 1)


def chunked_cross_entropy(model: BlockwiseLM, states: Tensor, labels: Tensor) -> Tensor:
    """Cross entropies through the target's output embedding, chunk by chunk.

    Args:
        model: the target.
        states: (N, D) float, after the networks of the heads.
        labels: (N,) int64.

    Returns:
        (N,) float32, nats per token.
    """
    pairs = zip(chunked_logits(model, states), _chunks(model, labels), strict=True)
    return torch.cat([F.cross_entropy(logits, chunk, reduction="none") for logits, chunk in pairs])


def chunked_logits(model: BlockwiseLM, states: Tensor) -> Iterator[Tensor]:
    """Float32 logits (C, V) of states (N, D), chunk by chunk."""
    for rows in _chunks(model, states):
        rows = rows.to(model.output_embedding.weight.dtype)
        yield project_states(model.output_embedding, rows).float()


def _chunks(model: BlockwiseLM, rows: Tensor) -> tuple[Tensor, ...]:
    return torch.split(rows, _chunk_rows(model.vocab_size, model.device))
