"""The loss of a blockwise LM: one cross entropy for each head.

Cross entropy goes through the output embedding in chunks of rows, so that logits stay in the
processor's cache; draft heads are evaluated at a random part of the positions.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lattice_bpd.models import BlockwiseLM

_CHUNK = 512  # rows of logits at once: 512 x 1024 float32 fit a second-level cache


def block_losses(
    model: BlockwiseLM, batch: Tensor, head_fraction: float, generator: torch.Generator
) -> Tensor:
    """Cross entropies L_1 .. L_h of one batch.

    Args:
        model: target and heads.
        batch: (B, T+h) int64; the last h tokens are labels only.
        head_fraction: share of the B*T positions at which draft heads are evaluated, at least one.
        generator: draws those positions.

    Returns:
        (h,) float32, nats a token.
    """
    num_heads = model.num_heads
    length = batch.shape[1] - num_heads
    output = model.base.base_model(input_ids=batch[:, :length], use_cache=False)
    hidden = output.last_hidden_state.flatten(0, 1)  # (B*T, D)
    labels = batch[:, 1:].unfold(1, num_heads, 1).flatten(0, 1)  # (B*T, h): tokens 1..h places on
    base_loss = chunked_cross_entropy(model, hidden, labels[:, 0]).mean()
    count = max(1, round(head_fraction * hidden.shape[0]))
    drawn = torch.randperm(hidden.shape[0], generator=generator)[:count].to(hidden.device)
    states = model.heads(hidden[drawn])  # (N, H, D)
    draft_losses = chunked_cross_entropy(
        model, states.flatten(0, 1), labels[drawn, 1:].flatten()
    ).view(count, -1)
    return torch.cat([base_loss[None], draft_losses.mean(dim=0)])


def chunked_cross_entropy(model: BlockwiseLM, states: Tensor, labels: Tensor) -> Tensor:
    """Losses through the target's output embedding, a chunk of rows at a time.

    Args:
        model: the target.
        states: (N, D) float.
        labels: (N,) int64.

    Returns:
        (N,) float32, nats a token.
    """
    pairs = zip(torch.split(states, _CHUNK), torch.split(labels, _CHUNK), strict=True)
    return torch.cat(
        [
            F.cross_entropy(model.output_embedding(rows).float(), wanted, reduction="none")
            for rows, wanted in pairs
        ]
    )
