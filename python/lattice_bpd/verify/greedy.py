"""The target's greedy choice, and the number of draft tokens that agree with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lattice_bpd import _core
from lattice_bpd.verify.prefix_tree import PrefixTree

FloatRow = npt.NDArray[np.float32]

_NAN = (
    "verify_drafts: the target's logits hold NaN; expected numbers; check its weights, and its "
    "dtype (float16 overflows on some models: use bfloat16 or float32)"
)


def greedy_tokens(logits: Tensor) -> Tensor:
    """The target's greedy choice at each position; all strategies use this function.

    Args:
        logits: (..., V) float.

    Returns:
        (...) int64; the smallest id if several logits share the maximum.

    Raises:
        ValueError: a NaN among the logits.
    """
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        rows = logits.reshape(-1, logits.shape[-1]).numpy()  # ten times faster than torch's max
        best = rows.argmax(axis=-1)
        token_ids = torch.from_numpy(best).view(logits.shape[:-1])
        has_nan = bool(np.isnan(rows[np.arange(len(rows)), best]).any())
    else:
        maxima, token_ids = logits.max(dim=-1)
        has_nan = bool(maxima.isnan().any())
    if has_nan:  # both return the first maximum and treat NaN as the largest number
        raise ValueError(_NAN)
    return token_ids


def follow_greedy(
    trees: Sequence[PrefixTree],
    logits: Tensor,
    indices: list[npt.NDArray[np.int64]] | None,
) -> list[tuple[list[int], list[int], int]]:
    """Follow each tree while the target's choice is among the drafts.

    Args:
        trees: of B sequences.
        logits: (R, T, V) float.
        indices: for each tree (n+1,), the index of each node's logits after flattening the first
            two axes; None if row b has the nodes of tree b in order.

    Returns:
        For each tree the accepted nodes and the target's tokens after them, see
        `PrefixTree.follow`, and the index of the last node's logits.

    Raises:
        ValueError: a NaN among the logits of accepted nodes; on an accelerator, where all nodes
            are decided in one synchronization, among any.
    """
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        cores = [tree._core for tree in trees]
        return _core.follow_greedy(cores, logits.contiguous().numpy(), indices)
    token_ids: list[int] = greedy_tokens(logits).flatten().tolist()
    followed = []
    for number, tree in enumerate(trees):
        index_of = logits_index(indices, number, logits.shape[1])
        nodes, tokens = tree.follow(lambda node, at=index_of: token_ids[at(node)])  # type: ignore[misc]
        followed.append((nodes, tokens, index_of(nodes[-1])))
    return followed


def logits_index(
    indices: list[npt.NDArray[np.int64]] | None, number: int, size: int
) -> Callable[[int], int]:
    """The function from a node of tree `number` to the index of its logits; see `follow_greedy`."""
    if indices is None:
        return (number * size).__add__
    return indices[number].item


def logits_row(logits: Tensor) -> FloatRow:
    """Logits of one position, (V,) of any float dtype and device, as numpy's float32."""
    return logits.float().numpy(force=True)


def greedy_token(row: FloatRow) -> int:
    """The target's greedy choice at one position.

    Args:
        row: (V,) float32 logits.

    Returns:
        The smallest id if several logits share the maximum.

    Raises:
        ValueError: a NaN among the logits.
    """
    best = row.argmax()
    if row[best] != row[best]:
        raise ValueError(_NAN)
    return int(best)


def accept_lengths(drafts: Tensor, predictions: Tensor) -> Tensor:
    """The number of leading tokens of each draft that the target agrees with.

    Args:
        drafts: (p, H) int64.
        predictions: (p, H+1) int64 or (p, H); column j is the target's token for draft token j.

    Returns:
        (p,) int64, 0..H. Drafts 5 7 9 against 5 7 2 8: 2.
    """
    agrees = drafts == predictions[:, : drafts.shape[1]]
    return agrees.long().cumprod(dim=1).sum(dim=1)
