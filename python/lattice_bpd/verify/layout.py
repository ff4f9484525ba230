"""Attention masks of a call over texts with holes, a window, or a static cache."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lattice_bpd.verify.batch_cache import BatchCache

if TYPE_CHECKING:
    from lattice_bpd.verify.target import TargetModel


@cache
def lowest_number(dtype: torch.dtype) -> float:
    """The smallest finite number of a float type."""
    return torch.finfo(dtype).min


def mask_attention(
    target: TargetModel,
    state: BatchCache,
    attends: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
    position_ids: Tensor,
    sequences: range | list[int],
) -> tuple[Tensor, Tensor | None]:
    """(R, 1, T, P) floats to be added to attention scores, and the same within the window.

    Args:
        target: names device, dtype and window.
        state: cache positions before this call.
        attends: (R, T, T) bool, the new tokens that each new token attends to.
        position_ids: (R, T) int64 of the new tokens.
        sequences: the sequence of each row.
    """
    lowest = lowest_number(target.dtype)
    block = torch.zeros(attends.shape, dtype=target.dtype, device=target.device)
    block.masked_fill_(torch.from_numpy(~attends).to(target.device), lowest)
    if state.positions is None:
        mask = F.pad(block, (state.width, 0))
    else:
        holes = torch.from_numpy(state.positions[sequences] < 0).to(target.device)
        old = block.new_zeros((len(attends), 1, state.width)).masked_fill_(holes[:, None], lowest)
        mask = torch.cat([old.expand(-1, attends.shape[1], -1), block], dim=2)
    windowed = None
    if target.sliding_window is not None:
        windowed = mask.masked_fill(
            _too_far(state, position_ids, sequences, target.sliding_window), lowest
        )
    # Free positions of a static cache are among the keys of a call.
    free = state.free_positions(attends.shape[1])
    if free > 0:
        mask = F.pad(mask, (0, free), value=lowest)
        windowed = None if windowed is None else F.pad(windowed, (0, free), value=lowest)
    return mask.unsqueeze(1), None if windowed is None else windowed.unsqueeze(1)


def _too_far(
    state: BatchCache, position_ids: Tensor, sequences: range | list[int], window: int
) -> Tensor:
    """(R, T, P) bool: the cache positions outside the sliding window of each new token."""
    if state.positions is None:
        old = torch.arange(state.width, device=position_ids.device).expand(len(sequences), -1)
    else:
        old = torch.from_numpy(state.positions[sequences]).to(position_ids)
    positions = torch.cat([old, position_ids], dim=1)
    distance = position_ids[:, :, None] - positions[:, None, :]
    return distance >= window
