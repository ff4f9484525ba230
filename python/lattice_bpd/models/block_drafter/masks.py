"""Which positions a block sees: the context before its anchor, and the block itself."""

from __future__ import annotations

import torch
from torch import Tensor


def visible_in_cache(positions: Tensor, end: int, *, causal: bool, window: int | None) -> Tensor:
    """The mask of blocks that follow their sequences in a cache.

    Args:
        positions: (B, K) int64, of the blocks; the cache holds all positions before them.
        end: S, positions of the cache that are read.
        causal: whether a block position sees only those up to itself.
        window: a position sees those less than `window` away; None: all.

    Returns:
        (B, 1, K, S) bool.
    """
    keys = torch.arange(end, device=positions.device)
    last = positions if causal else positions[:, -1:]
    visible = (keys <= last.unsqueeze(-1)).expand(-1, positions.shape[1], -1)
    return _within(visible, positions, keys.expand(len(positions), -1), window).unsqueeze(1)


def visible_to_blocks(
    length: int, anchors: Tensor, block_size: int, *, causal: bool, window: int | None
) -> Tensor:
    """The mask of all blocks of a text at once: a block sees no other block.

    Args:
        length: T, positions of the context.
        anchors: (B, N) int64, position of each block's first token.
        block_size: K.
        causal: as in `visible_in_cache`.
        window: likewise.

    Returns:
        (B, 1, N*K, T + N*K) bool; keys are the context, then the blocks.
    """
    batch, blocks = anchors.shape
    steps = torch.arange(block_size, device=anchors.device)
    queries = (anchors.unsqueeze(-1) + steps).flatten(1)  # (B, N*K)
    context = torch.arange(length, device=anchors.device).expand(batch, -1)
    before = context.unsqueeze(1) < anchors.unsqueeze(-1)  # (B, N, T)
    own = torch.eye(blocks, dtype=torch.bool, device=anchors.device)
    inner = torch.ones(block_size, block_size, dtype=torch.bool, device=anchors.device)
    # kron: block n's rows see block n's columns.
    within = torch.kron(own, inner.tril() if causal else inner).expand(batch, -1, -1)
    visible = torch.cat([before.repeat_interleave(block_size, dim=1), within], dim=2)
    return _within(visible, queries, torch.cat([context, queries], dim=1), window).unsqueeze(1)


def group_blocks(anchors: Tensor, length: int, block_size: int) -> tuple[int, Tensor]:
    """Groups of blocks whose attention scores are one matrix over the context and the group.

    Groups of half the context's length balance the scores between blocks of a group, which are
    computed for nothing, and the copies of the context's keys and values, one for each group.

    Args:
        anchors: (B, N) int64.
        length: T, positions of the context.
        block_size: K.

    Returns:
        The number G of groups, and anchors (B, M) with M >= N a multiple of G, the last repeated.
    """
    count = anchors.shape[1]
    size = min(count, max(1, length // (2 * block_size)))
    groups = -(-count // size)
    return groups, torch.cat([anchors, anchors[:, -1:].expand(-1, groups * size - count)], dim=1)


def _within(visible: Tensor, queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """The mask (B, Q, S) less what is `window` or more away; queries (B, Q) and keys (B, S)."""
    if window is None:
        return visible
    return visible & ((queries.unsqueeze(-1) - keys.unsqueeze(1)).abs() < window)
