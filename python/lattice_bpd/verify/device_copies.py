"""Moving and copying of cache positions on an accelerator.

On the host, `_core.move_slots` and `_core.copy_slots` handle all layers in one call, which is
faster than these few calls of torch. Buffers are (L, B, heads, positions, D).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def move_on_device(buffer: Tensor, start: int, sources: Sequence[Sequence[int]]) -> None:
    """Copy cache positions of each of B sequences to `start`, `start`+1, .. in every layer.

    Sequences with fewer sources than others get undefined values after theirs.
    """
    index = pad_sources(sources).to(buffer.device)
    layers, batch, heads, _, size = buffer.shape
    index = index.view(1, batch, 1, -1, 1).expand(layers, batch, heads, -1, size)
    buffer.narrow(3, start, index.shape[3]).copy_(buffer.gather(3, index))


def copy_on_device(
    source: Tensor, rows: Sequence[int], buffer: Tensor, first_row: int, start: int, count: int
) -> None:
    """Copy positions `start` .. of rows of one buffer to rows `first_row` .. of another."""
    index = torch.tensor(rows, device=buffer.device)
    new = source.narrow(3, start, count).index_select(1, index)
    buffer.narrow(1, first_row, len(rows)).narrow(3, start, count).copy_(new)


def pad_sources(sources: Sequence[Sequence[int]]) -> Tensor:
    """(B, A) int64; shorter rows are padded with their first entry, or with 0."""
    longest = max(map(len, sources))
    return torch.tensor([[*row, *[row[0] if row else 0] * (longest - len(row))] for row in sources])
