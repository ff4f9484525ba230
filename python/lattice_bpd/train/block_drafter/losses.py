"""Losses of a block drafter and their gradients, a bounded number of logits at a time."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from lattice_bpd.models.block_drafter.features import read_features
from lattice_bpd.models.block_drafter.module import BlockDrafter
from lattice_bpd.train.block_drafter.texts import Pieces
from lattice_bpd_kim2024.heads.cross_entropy import chunk_rows


def add_gradients(
    drafter: BlockDrafter,
    target: PreTrainedModel,
    pieces: Pieces,
    weights: Tensor,
    distillation: float,
) -> Tensor:
    """Add the gradients of a weighted sum of losses to the .grad of the drafter.

    Args:
        drafter: attached to the target.
        target: frozen, in evaluation mode.
        pieces: of text, on the target's device.
        weights: (H,) float32, weight of one block's loss at each slot.
        distillation: see BlockTrainOptions.

    Returns:
        (H,) float32: cross entropies with the text, nats, summed over all blocks.
    """
    ids, anchors = pieces
    features, target_logits = read_features(
        target, ids, drafter.hidden_layers, with_logits=distillation > 0.0
    )
    states = drafter.train_states(features, ids, anchors)
    slots = drafter.num_slots
    positions = label_positions(anchors, slots)
    rows = states.detach().reshape(-1, states.shape[-1]).requires_grad_()
    labels = take_labels(ids, anchors, slots).flatten()
    row_weights = weights.repeat(len(rows) // slots)
    texts = torch.arange(len(ids), device=ids.device).repeat_interleave(positions[0].numel())
    before = positions.flatten() - 1  # the target's logits there predict the label
    losses = []
    size = chunk_rows(target_logits.shape[-1], rows.device)
    for part in (slice(start, start + size) for start in range(0, len(rows), size)):
        log_probs = drafter.logits(rows[part]).float().log_softmax(-1)
        loss = F.nll_loss(log_probs, labels[part], reduction="none")
        losses.append(loss.detach())
        if distillation > 0.0:
            probs = target_logits[texts[part], before[part]].float().softmax(-1)
            soft = -(probs * log_probs).sum(-1)
            loss = torch.lerp(loss, soft, distillation)
        (loss * row_weights[part]).sum().backward()  # type: ignore[no-untyped-call]
    assert rows.grad is not None
    states.backward(rows.grad.view_as(states))  # type: ignore[no-untyped-call]
    return torch.cat(losses).view(-1, slots).sum(0)


def take_labels(token_ids: Tensor, anchors: Tensor, num_slots: int) -> Tensor:
    """The H tokens after anchors (B, N) of texts (B, T), as (B, N, H)."""
    positions = label_positions(anchors, num_slots)
    return token_ids.gather(1, positions.flatten(1)).view(positions.shape)


def label_positions(anchors: Tensor, num_slots: int) -> Tensor:
    """The H positions after each anchor: (B, N, H)."""
    return anchors.unsqueeze(-1) + torch.arange(1, num_slots + 1, device=anchors.device)
