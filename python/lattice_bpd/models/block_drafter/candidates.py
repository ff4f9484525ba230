"""The best candidates of each slot of a block, on the logits' device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class SlotCandidates(NamedTuple):
    """Candidates of the slots after B anchors.

    Attributes:
        anchors: (B,) int64, the exact tokens before slot 0.
        states: (B, H, D) float, which predict the slots; (B, 1, D) where all slots read one.
        token_ids: (B, H, k) int64, best first, ties by ascending id.
        draft_ids: (B, H, k) int64, their indices into the logits; token_ids, unless the drafter
            has a vocabulary of its own.
        logits: (B, H, k) float32.
        log_total: (B, H, 1) float32, logsumexp of all logits of a slot.
    """

    anchors: Tensor
    states: Tensor
    token_ids: Tensor
    draft_ids: Tensor
    logits: Tensor
    log_total: Tensor


def candidates_of(logits: Tensor, states: Tensor, anchors: Tensor, top_k: int) -> SlotCandidates:
    """The best candidates of logits (B, H, V) over the target's vocabulary; see SlotCandidates."""
    logits = logits.float()
    ids = top_ids(logits, top_k)
    total = logits.logsumexp(dim=-1, keepdim=True)
    return SlotCandidates(anchors, states, ids, ids, logits.gather(-1, ids), total)


def top_ids(logits: Tensor, top_k: int) -> Tensor:
    """(.., k) int64 indices of the greatest logits (.., V), best first.

    Equal logits are ordered by ascending index; which of them is the k-th is the device's choice.
    """
    ids = logits.topk(top_k, sorted=False).indices.sort(dim=-1).values
    order = logits.gather(-1, ids).argsort(dim=-1, descending=True, stable=True)
    return ids.gather(-1, order)


def greedy_walk(start: Tensor, transitions: Tensor) -> Tensor:
    """The best candidate of each slot after the one before it.

    Args:
        start: (B, k) float.
        transitions: (B, H-1, k, k) float, see LatticeInput.

    Returns:
        (B, H) int64, indices of candidates.
    """
    path = [start.argmax(dim=-1)]
    rows = torch.arange(len(start), device=start.device)
    for slot in range(transitions.shape[1]):
        path.append(transitions[rows, slot, path[-1]].argmax(dim=-1))
    return torch.stack(path, dim=1)
