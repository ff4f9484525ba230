"""How well heads guess text that they did not learn from."""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from lattice_bpd.models.blockwise import BlockwiseLM
from lattice_bpd.models.heads import BlockwiseHeads
from lattice_bpd.train.heads.batches import HeadText
from lattice_bpd.train.heads.losses import autocast, chunked_logits, label_view, read_hidden
from lattice_bpd.train.heads.parallel import ALONE, Processes

_POSITIONS = 512  # whose head states are alive at once


class HeadScores(NamedTuple):
    """Figures of heads 1..h.

    Attributes:
        losses: h cross entropies, nats a token.
        accuracies: h shares of positions where the head's likeliest token is the text's.
        positions: how many positions were looked at.
    """

    losses: list[float]
    accuracies: list[float]
    positions: int


@torch.no_grad()
def measure_heads(
    model: BlockwiseLM,
    text: HeadText,
    sequence_length: int,
    *,
    max_pieces: int = 64,
    batch_size: int = 8,
    precision: str = "fp32",
    processes: Processes = ALONE,
) -> HeadScores:
    """Loss and accuracy of every head, the target's own first, on pieces spread over a text.

    Args:
        model: target and heads; the mode it is in is kept, dropout is off.
        text: at least sequence_length + h tokens.
        sequence_length: T, positions of a piece.
        max_pieces: pieces at most; fewer where the text has room for fewer beside each other.
        batch_size: pieces that the target reads at once.
        precision: "fp32" or "bf16".
        processes: that share the pieces; all get the scores.

    Returns:
        HeadScores.

    Raises:
        ValueError: a text that is too short.
        ConnectionError: another process is gone.
    """
    length = sequence_length + model.num_heads
    text.check(length, "measure_heads")
    count = min(max_pieces, len(text.token_ids) // length)
    step = text.row_length or 1
    places = np.linspace(0, text.num_starts(length) - 1, count).astype(np.int64) * step
    own = torch.from_numpy(places)[processes.number :: processes.count]
    # a row each: losses, hits, positions
    sums = torch.zeros(3, model.num_heads, dtype=torch.float64)
    training = model.training, model.base.training
    model.eval()
    for starts in torch.split(own, batch_size) if len(own) else ():
        pieces = text.take(starts, length, model.device)
        sums += _measure(model, pieces, text.first_position, precision)
    model.train(training[0])
    model.base.train(training[1])
    total = sums.to(model.device)
    processes.add_up([total])
    losses, hits, positions = total.tolist()
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
    sums = torch.zeros(3, model.num_heads, dtype=torch.float64)
    for rows, wanted in zip(
        torch.split(hidden, _POSITIONS), torch.split(labels, _POSITIONS), strict=True
    ):
        with autocast(model, precision):
            drafts = cast(BlockwiseHeads, model.heads)(rows)  # (n, H, D)
        states = torch.cat([rows.unsqueeze(1), drafts.float()], dim=1).flatten(0, 1)
        losses, hits = _score(model, states, wanted.flatten())
        sums[0] += losses.view(wanted.shape).sum(dim=0).double().cpu()
        sums[1] += hits.view(wanted.shape).sum(dim=0).double().cpu()
        sums[2] += len(rows)
    return sums


def _score(model: BlockwiseLM, states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) losses and (N,) whether the likeliest token is the label."""
    losses, hits, begin = [], [], 0
    for logits in chunked_logits(model, states):
        wanted = labels[begin : begin + len(logits)]
        begin += len(logits)
        losses.append(torch.nn.functional.cross_entropy(logits, wanted, reduction="none"))
        hits.append(logits.argmax(dim=1) == wanted)
    return torch.cat(losses), torch.cat(hits)
