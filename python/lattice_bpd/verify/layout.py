"""Inputs and masks of a call over texts of several lengths, a window, or a cache of fixed size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lattice_bpd.verify.rows import Rows


@cache
def lowest_number(dtype: torch.dtype) -> float:
    """The smallest finite number of a float type."""
    return torch.finfo(dtype).min


def mask_attention(
    target: Any,
    state: Rows,
    attends: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
    position_ids: Tensor,
    texts: Sequence[int],
) -> tuple[Tensor, Tensor | None]:
    """(R, 1, T, P) floats to be added to attention scores, and the same within the window.

    Args:
        target: names device, dtype and window.
        state: the texts before this call.
        attends: (R, T, T) bool, the new tokens that each new token attends to.
        position_ids: (R, T) int64 of the new tokens.
        texts: of each row.
    """
    device, size = target.device, attends.shape[1]
    starts = torch.tensor([state.lengths[text] for text in texts], device=device)[:, None]
    steps = torch.arange(state.width + size, device=device)
    unseen = torch.from_numpy(~attends).to(device)
    return mask_positions(target, starts, steps, starts + steps[:size], unseen, position_ids)


def mask_positions(
    target: Any, starts: Tensor, steps: Tensor, new: Tensor, unseen: Tensor,
    position_ids: Tensor,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """See `mask_attention`.

    Args:
        target: names dtype and window.
        starts: (R, 1) int64, tokens of each text.
        steps: (P,) int64, 0, 1, .. P - 1.
        new: (R, T) int64, the positions of the cache that the new tokens have.
        unseen: (R, T, T) bool, the new tokens that each new token does not attend to.
        position_ids: (R, T) int64 of the new tokens.
    """
    rows, size = new.shape
    hidden = (steps >= starts)[:, None].repeat(1, size, 1)
    hidden.scatter_(2, new[:, None].expand(-1, size, -1), unseen)
    window, lowest = target.sliding_window, lowest_number(target.dtype)
    if window is None:
        return _to_floats(hidden, target.dtype, lowest), None
    positions = steps.repeat(rows, 1).scatter_(1, new, position_ids)
    far = position_ids[:, :, None] - positions[:, None] >= window
    both = (_to_floats(part, target.dtype, lowest) for part in (hidden, hidden | far))
    return next(both), next(both)


def _to_floats(hidden: Tensor, dtype: torch.dtype, lowest: float) -> Tensor:
    mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return mask.masked_fill_(hidden, lowest).unsqueeze(1)
