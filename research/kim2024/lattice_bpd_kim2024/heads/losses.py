"""The loss of a blockwise LM, one cross entropy per head, and its gradients.

Loss = sum_h lambda_h L_h, where L_h is the cross entropy of head h against the token h positions
later (Kim et al. 2024, appendix C.1). The target runs once for all heads. Heads and output
embedding then run forward and backward in chunks of positions that leave only the gradient of the
hidden states, so memory grows neither with heads x V nor with heads x positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from lattice_bpd.models.blockwise import BlockwiseLM
from lattice_bpd.models.first_head import first_head_states, project_states
from lattice_bpd.models.heads import BlockwiseHeads
from lattice_bpd_kim2024.heads.cross_entropy import chunk_rows, weighted_cross_entropy

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
    return torch.split(rows, chunk_rows(model.vocab_size, model.device))
