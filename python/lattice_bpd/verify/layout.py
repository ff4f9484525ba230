"""One call of the target over the drafts of B sequences, in two shapes.

    rows   one row per draft: exact token, draft tokens         (R, depth + 1), causal mask
    tree   one row per sequence: exact token, all tree nodes    (B, nodes + 1), mask by ancestors

In both a node's token has the position that it would have in the text.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from lattice_bpd import _core
from lattice_bpd.verify.batch_cache import BatchCache, to_device
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.target import TargetModel


class Call(NamedTuple):
    """The inputs of one call, and which of its logits belong to which node.

    Attributes:
        input_ids: (R, T) int64.
        position_ids: (R, T) int64; None if the target's own numbering is right.
        attention_mask: see TargetModel; None for the plain causal mask.
        windowed_mask: the same for layers with a sliding window, or None.
        sequences: the sequence of each row; None for one row each, in order.
        indices: for each sequence, (n+1,) int64, the index row * T + column of the logits of its
            nodes; None if row b has those of sequence b in order.
    """

    input_ids: Tensor
    position_ids: Tensor | None
    attention_mask: Tensor | None
    windowed_mask: Tensor | None
    sequences: list[int] | None
    indices: list[npt.NDArray[np.int64]] | None


def lay_out_tree(target: TargetModel, state: BatchCache, trees: list[PrefixTree]) -> Call:
    """Exact token and tree nodes of each sequence as one row."""
    cores = [tree._core for tree in trees]
    size = state.call_size(max(map(len, cores)))
    inputs = _core.tree_inputs(cores, state.lengths, size)
    if target.device.type == "cpu":
        input_ids, position_ids = map(torch.from_numpy, inputs)
    else:  # in one copy
        input_ids, position_ids = to_device(np.stack(inputs), target.device).unbind()
    masks: tuple[Tensor, Tensor | None]
    if target.device.type == "cpu" and state.positions is None and target.sliding_window is None:
        positions = state.width + size + state.free_positions(size)
        lowest = _lowest(target.dtype)
        mask = torch.from_numpy(_core.additive_masks(cores, size, state.width, positions, lowest))
        masks = mask if target.dtype == torch.float32 else mask.to(target.dtype), None
    else:
        attends = _core.node_masks(cores, size).view(np.bool_)
        masks = _masks(target, state, attends, position_ids, range(len(trees)))
    return Call(input_ids, position_ids, *masks, None, None)


def lay_out_rows(target: TargetModel, state: BatchCache, trees: list[PrefixTree]) -> Call:
    """Every path of the trees as a row, padded with token 0, whose logits are unused."""
    ids, texts, sequences, indices = _core.row_inputs([t._core for t in trees], state.lengths)
    repeats = sequences if len(sequences) > len(trees) else None
    input_ids, size = to_device(ids, target.device), ids.shape[1]
    if state.positions is None and not _needs_window(target, state.width + size):
        return Call(input_ids, None, None, None, repeats, indices)  # the target numbers them itself
    position_ids = to_device(texts, target.device)
    masks: tuple[Tensor, Tensor | None]
    if target.sliding_window is None:
        assert state.positions is not None
        used = torch.from_numpy(state.positions[sequences] >= 0).to(target.device)
        masks = F.pad(used.long(), (0, size), value=1), None
    else:
        attends = np.tri(size, dtype=np.bool_)[None].repeat(len(ids), axis=0)
        masks = _masks(target, state, attends, position_ids, sequences)
    return Call(input_ids, position_ids, *masks, repeats, indices)


def _needs_window(target: TargetModel, width: int) -> bool:
    """Whether a call over `width` cache positions needs an explicit mask for its window.

    In `generate` the cache itself drops positions outside of the window. Ours keeps all positions,
    and some models with a window do not mask it (Moshi).
    """
    window = target.sliding_window
    return window is not None and width > window and target.refuses_tree() is None


@cache
def _lowest(dtype: torch.dtype) -> float:
    """The smallest finite number of a float type."""
    return torch.finfo(dtype).min


def _masks(
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
    lowest = _lowest(target.dtype)
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
