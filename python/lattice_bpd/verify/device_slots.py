"""Moving and copying slots of caches on an accelerator, where the core cannot reach.

On the host `_core.move_slots` and `_core.copy_slots` do the same for all layers in one call, which
is quicker than the few calls of torch that it takes here. Buffers are (L, B, heads, slots, D).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def move_on_device(buffer: Tensor, start: int, sources: Sequence[Sequence[int]]) -> None:
    """Copy slots of each of B sequences to `start`, `start`+1, .. in every layer.

    What stands behind those of a sequence with fewer slots than others is anybody's afterwards.
    """
    index = pad_slots(sources).to(buffer.device)
    layers, batch, heads, _, size = buffer.shape
    places = index.view(1, batch, 1, -1, 1).expand(layers, batch, heads, -1, size)
    buffer.narrow(3, start, index.shape[1]).copy_(buffer.gather(3, places))


def copy_on_device(
    source: Tensor, rows: Sequence[int], buffer: Tensor, first_row: int, start: int, count: int
) -> None:
    """Copy slots `start` .. of rows of one buffer to rows `first_row` .. of another."""
    index = torch.tensor(rows, device=buffer.device)
    new = source.narrow(3, start, count).index_select(1, index)
    buffer.narrow(1, first_row, len(rows)).narrow(3, start, count).copy_(new)


def pad_slots(sources: Sequence[Sequence[int]]) -> Tensor:
    """(B, A) int64, rows of fewer slots padded with their first, or with 0."""
    longest = max(map(len, sources))
    return torch.tensor([[*row, *[row[0] if row else 0] * (longest - len(row))] for row in sources])
