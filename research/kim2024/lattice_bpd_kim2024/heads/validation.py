"""Loss and accuracy of heads on held-out text."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from lattice_bpd.models.heads import BlockwiseHeads
from lattice_bpd_kim2024.blockwise import BlockwiseLM
from lattice_bpd_kim2024.heads.first_head import first_head_states
from lattice_bpd_kim2024.heads.losses import autocast, chunked_logits, label_view, read_hidden
from lattice_bpd_kim2024.heads.options import HeadText

_POSITIONS = 512  # whose head states are in memory at once


class HeadScores(NamedTuple):
    """Scores of heads 1..h.

    Attributes:
        losses: h cross entropies, nats per token.
        accuracies: h top-1 accuracies.
        positions: number of positions evaluated.
    """

    losses: list[float]
    accuracies: list[float]
    positions: int

    def for_log(self) -> dict[str, Any]:
        """For the loss log, with lists by head number."""
        return {
            "losses": {str(head): loss for head, loss in enumerate(self.losses, 1)},
            "accuracies": {str(head): share for head, share in enumerate(self.accuracies, 1)},
            "positions": self.positions,
        }


@torch.no_grad()
def measure_heads(
    model: BlockwiseLM,
    text: HeadText,
    sequence_length: int,
    *,
    max_pieces: int = 64,
    batch_size: int = 8,
    precision: str = "fp32",
) -> HeadScores:
    """Loss and accuracy of every head, the target's own first, on evenly spaced sequences.

    Args:
        model: target and heads; evaluated without dropout, its mode is restored.
        text: at least sequence_length + h tokens.
        sequence_length: T, positions per sequence.
        max_pieces: maximum number of sequences; fewer if they would overlap.
        batch_size: sequences per call of the target.
        precision: "fp32" or "bf16".

    Returns:
        The scores.

    Raises:
        ValueError: a text that is too short.
    """
    length = sequence_length + model.num_heads
    text.check(length, "measure_heads")
    count = min(max_pieces, len(text.token_ids) // length)
    step = text.row_length or 1
    offsets = np.linspace(0, text.num_starts(length) - 1, count).astype(np.int64) * step
    # losses, hits, positions
    sums = torch.zeros(3, model.num_heads, dtype=torch.float64, device="cpu")
    training = model.training, model.base.training
    model.eval()
    for starts in torch.split(torch.from_numpy(offsets), batch_size):
        pieces = text.take(starts, length, model.device)
        sums += _measure(model, pieces, text.first_position, precision)
    model.train(training[0])
    model.base.train(training[1])
    losses, hits, positions = sums.tolist()
    return HeadScores(
        [loss / n for loss, n in zip(losses, positions, strict=True)],
        [hit / n for hit, n in zip(hits, positions, strict=True)],
        int(positions[0]),
    )


def _measure(model: BlockwiseLM, pieces: Tensor, first: int, precision: str) -> Tensor:
    """(3, h) float64 on the CPU: sums of losses and hits, and positions."""
    hidden = read_hidden(model, pieces, precision)
    labels = label_view(pieces, model.num_heads)
    length = pieces.shape[1] - model.num_heads
    kept = torch.arange(len(hidden), device=hidden.device) % length >= first
    hidden, labels = hidden[kept], labels[kept]
    sums = torch.zeros(3, model.num_heads, dtype=torch.float64, device="cpu")
    for rows, row_labels in zip(
        torch.split(hidden, _POSITIONS), torch.split(labels, _POSITIONS), strict=True
    ):
        with autocast(model, precision):
            drafts = cast(BlockwiseHeads, model.heads)(rows)  # (n, H, D)
            exact = first_head_states(model.output_embedding, rows)
        states = torch.cat([exact.float().unsqueeze(1), drafts.float()], dim=1).flatten(0, 1)
        losses, hits = _score(model, states, row_labels.flatten())
        sums[0] += losses.view(row_labels.shape).sum(dim=0).double().cpu()
        sums[1] += hits.view(row_labels.shape).sum(dim=0).double().cpu()
        sums[2] += len(rows)
    return sums


def _score(model: BlockwiseLM, states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) losses, and (N,) whether the argmax is the label."""
    losses, hits, begin = [], [], 0
    for logits in chunked_logits(model, states):
        chunk = labels[begin : begin + len(logits)]
        begin += len(logits)
        losses.append(torch.nn.functional.cross_entropy(logits, chunk, reduction="none"))
        hits.append(logits.argmax(dim=1) == chunk)
    return torch.cat(losses), torch.cat(hits)
