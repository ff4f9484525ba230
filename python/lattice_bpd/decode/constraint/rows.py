"""Drafts and trees of single lattices, put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import Drafts, DraftTree


def stack_drafts(rows: Sequence[Drafts]) -> Drafts:
    """Drafts of B = 1 as one of B = len(rows)."""
    token_ids = _stack([np.asarray(row.token_ids)[0] for row in rows], Drafts.PAD_TOKEN)
    scores = _stack([np.asarray(row.scores)[0] for row in rows], -np.inf)
    return Drafts(token_ids, scores, np.concatenate([row.counts for row in rows]))


def stack_trees(rows: Sequence[DraftTree]) -> DraftTree:
    """Trees of B = 1 as one of B = len(rows)."""
    if len(rows) == 1:
        return rows[0]
    token_ids, parents, leaf_paths = (
        _stack([getattr(row, name)[0] for row in rows], -1)
        for name in ("token_ids", "parents", "leaf_paths")
    )
    depths = _stack([row.depths[0] for row in rows], 0)
    log_probs = _stack([row.log_probs[0] for row in rows], -np.inf)
    masks = np.stack([np.eye(token_ids.shape[1], dtype=np.bool_)] * len(rows))
    for number, row in enumerate(rows):
        size = row.token_ids.shape[1]
        masks[number, :size, :size] = row.attention_mask[0]
    counts: Any = np.concatenate([row.counts for row in rows])
    return DraftTree(token_ids, parents, depths, log_probs, counts, masks, leaf_paths)


def tree_of_drafts(drafts: Drafts, max_nodes: int) -> DraftTree:
    """The prefixes of listed drafts that hold the most probability, as one tree.

    P(w) = exp(score(w)) / Z over the listed drafts alone; see `DraftTree`.

    Args:
        drafts: B = 1, best first.
        max_nodes: N.
    """
    count = int(drafts.counts[0])
    shares = np.exp(np.asarray(drafts.scores[0][:count], np.float64) - float(drafts.scores[0][0]))
    masses: dict[tuple[int, ...], float] = {}
    for tokens, share in zip(drafts.token_ids[0][:count].tolist(), shares, strict=True):
        path = [token for token in tokens if token >= 0]
        for length in range(1, len(path) + 1):
            prefix = tuple(path[:length])
            masses[prefix] = masses.get(prefix, 0.0) + share
    ranked = sorted(masses, key=lambda prefix: -masses[prefix])[:max_nodes]  # stable: parents first
    log_probs = np.log(np.array([masses[prefix] for prefix in ranked]) / shares.sum())
    return _tree_of_prefixes(ranked, log_probs)


def _tree_of_prefixes(
    prefixes: list[tuple[int, ...]], log_probs: npt.NDArray[np.float64]
) -> DraftTree:
    """A tree of B = 1 of prefixes that stand behind their own."""
    numbers = {prefix: number for number, prefix in enumerate(prefixes)}
    parents = [numbers.get(prefix[:-1], -1) for prefix in prefixes]
    mask = np.eye(len(prefixes), dtype=np.bool_)
    paths: list[list[int]] = []
    for number, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), number])
        mask[number, paths[number]] = True
    leaves = [path for number, path in enumerate(paths) if number not in set(parents)]
    longest = max(map(len, leaves))
    leaf_paths = [path + [-1] * (longest - len(path)) for path in leaves]
    arrays: tuple[Any, Any, Any, Any, Any] = (
        np.array([[prefix[-1] for prefix in prefixes]], np.int32),
        np.array([parents], np.int32),
        np.array([[len(prefix) - 1 for prefix in prefixes]], np.int32),
        log_probs.astype(np.float32)[None],
        np.array([len(prefixes)], np.int32),
    )
    return DraftTree(*arrays, mask[None], np.array([leaf_paths], np.int32))


def _stack(arrays: Sequence[Any], fill: float) -> Any:
    """Arrays of one number of axes under each other, padded behind."""
    shape = [max(sizes) for sizes in zip(*(array.shape for array in arrays), strict=True)]
    found: Any = np.full((len(arrays), *shape), fill, arrays[0].dtype)
    for number, array in enumerate(arrays):
        found[number][tuple(map(slice, array.shape))] = array
    return found
