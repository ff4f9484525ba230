"""One call of the target over the drafts of B sequences, in two shapes.

    rows   every draft a row: exact token, draft tokens        (R, depth + 1), causal mask
    tree   every sequence a row: exact token, all tree nodes   (B, nodes + 1), mask by ancestors

Both put a node's token at the position that it would have in the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lattice_bpd.verify.batch_cache import BatchCache, to_device
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.target import TargetModel


class Call(NamedTuple):
    """The inputs of one call, and where it answers.

    Attributes:
        input_ids: (R, T) int64.
        position_ids: (R, T) int64; None where the target's own numbering is right.
        attention_mask: see TargetModel; None where nothing is hidden but the future.
        windowed_mask: the same for layers with a sliding window, or None.
        sequences: the sequence of each row; None for one row each, in order.
        rows: for each sequence and node the row that answers it.
        columns: for each sequence and node the column.
    """

    input_ids: Tensor
    position_ids: Tensor | None
    attention_mask: Tensor | None
    windowed_mask: Tensor | None
    sequences: list[int] | None
    rows: list[list[int]]
    columns: Sequence[Sequence[int]]


def lay_out_tree(target: TargetModel, state: BatchCache, trees: list[PrefixTree]) -> Call:
    """Exact token and tree nodes of each sequence as one row."""
    size = state.call_size(max(len(tree) for tree in trees))
    new = np.zeros((2, len(trees), size), np.int64)  # tokens and positions
    sees = np.empty((len(trees), size, size), np.bool_)
    for number, (tree, start) in enumerate(zip(trees, state.lengths, strict=True)):
        new[0, number, : len(tree)] = tree.token_ids
        new[1, number, : len(tree)] = tree.depths
        new[1, number] += start
        sees[number] = tree.attention_mask(size)
    input_ids, position_ids = to_device(new, target.device).unbind()
    masks = _masks(target, state, sees, position_ids, range(len(trees)))
    return Call(
        input_ids,
        position_ids,
        *masks,
        None,
        [[number] * len(tree) for number, tree in enumerate(trees)],
        [range(len(tree)) for tree in trees],
    )


def lay_out_rows(target: TargetModel, state: BatchCache, trees: list[PrefixTree]) -> Call:
    """Every path of the trees as a row; shorter ones end in token 0, which nobody looks at."""
    size = 1 + max(tree.max_depth for tree in trees)
    ids: list[list[int]] = []
    places: list[list[int]] = []
    sequences: list[int] = []
    rows = [[0] * len(tree) for tree in trees]
    for number, tree in enumerate(trees):
        start = state.lengths[number]
        for path in tree.list_paths():
            for node in path:
                rows[number][node] = len(ids)
            rest = size - len(path)
            ids.append([tree.token_ids[node] for node in path] + [0] * rest)
            last = start + len(path) - 1
            places.append([*range(start, last + 1), *([last] * rest)])
            sequences.append(number)
    repeats = len(sequences) > len(trees)
    columns = [tree.depths for tree in trees]
    input_ids = to_device(np.array(ids, np.int64), target.device)
    if state.positions is None:  # then the target numbers and hides by itself as it should
        return Call(input_ids, None, None, None, sequences if repeats else None, rows, columns)
    position_ids = to_device(np.array(places, np.int64), target.device)
    masks: tuple[Tensor, Tensor | None]
    if target.sliding_window is None:
        used = torch.from_numpy(state.positions[sequences] >= 0).to(target.device)
        masks = F.pad(used.long(), (0, size), value=1), None
    else:
        sees = np.tri(size, dtype=np.bool_)[None].repeat(len(ids), axis=0)
        masks = _masks(target, state, sees, position_ids, sequences)
    return Call(input_ids, position_ids, *masks, sequences if repeats else None, rows, columns)


def _masks(
    target: TargetModel,
    state: BatchCache,
    sees: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
    position_ids: Tensor,
    sequences: range | list[int],
) -> tuple[Tensor, Tensor | None]:
    """(R, 1, T, slots) floats to be added to attention scores; the same within the window.

    Args:
        target: names device, dtype and window.
        state: slots before this call.
        sees: (R, T, T) bool, which new tokens see which.
        position_ids: (R, T) int64 of the new tokens.
        sequences: the sequence of each row.
    """
    lowest = torch.finfo(target.dtype).min
    if target.device.type == "cpu" and state.positions is None and target.sliding_window is None:
        return _plain_mask(target.dtype, state, sees, lowest), None
    block = torch.zeros(sees.shape, dtype=target.dtype, device=target.device)
    block.masked_fill_(torch.from_numpy(~sees).to(target.device), lowest)
    if state.positions is None:
        mask = F.pad(block, (state.width, 0))
    else:
        holes = torch.from_numpy(state.positions[sequences] < 0).to(target.device)
        old = block.new_zeros((len(sees), 1, state.width)).masked_fill_(holes[:, None], lowest)
        mask = torch.cat([old.expand(-1, sees.shape[1], -1), block], dim=2)
    windowed = None
    if target.sliding_window is not None:
        windowed = mask.masked_fill(
            _too_far(state, position_ids, sequences, target.sliding_window), lowest
        )
    free = state.free_slots(sees.shape[1])  # of a static cache, which the target looks at as well
    if free > 0:
        mask = F.pad(mask, (0, free), value=lowest)
        windowed = None if windowed is None else F.pad(windowed, (0, free), value=lowest)
    return mask.unsqueeze(1), None if windowed is None else windowed.unsqueeze(1)


def _plain_mask(
    dtype: torch.dtype,
    state: BatchCache,
    sees: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
    lowest: float,
) -> Tensor:
    """The mask where all old slots are seen; numpy is quicker than torch at these sizes."""
    rows, size, _ = sees.shape
    end = state.width + size
    mask = np.zeros((rows, 1, size, end + state.free_slots(size)), np.float32)
    np.copyto(mask[:, 0, :, state.width : end], lowest, where=~sees)
    if mask.shape[-1] > end:
        mask[..., end:] = lowest
    found = torch.from_numpy(mask)
    return found if dtype == torch.float32 else found.to(dtype)


def _too_far(
    state: BatchCache, position_ids: Tensor, sequences: range | list[int], window: int
) -> Tensor:
    """(R, T, slots) bool: which slots lie outside the sliding window of each new token."""
    if state.positions is None:
        old = torch.arange(state.width, device=position_ids.device).expand(len(sequences), -1)
    else:
        old = torch.from_numpy(state.positions[sequences]).to(position_ids)
    slots = torch.cat([old, position_ids], dim=1)
    distance = position_ids[:, :, None] - slots[:, None, :]
    return distance >= window
