"""Trees put together node by node, in the form that searches return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lattice_bpd import DraftTree


class Nodes(NamedTuple):
    """The nodes of one tree, parents before children.

    Attributes:
        token_ids: N ints.
        parents: N ints, -1 for first tokens.
        log_probs: N floats, natural log of a node's probability.
    """

    token_ids: Sequence[int]
    parents: Sequence[int]
    log_probs: Sequence[float]


def build_draft_tree(rows: Sequence[Nodes]) -> DraftTree:
    """A DraftTree with a row for each of B trees, padded to the largest.

    Nodes should stand by falling probability, where the first n are to be the tree of n nodes.
    """
    size = max((len(row.token_ids) for row in rows), default=0)
    batch = len(rows)
    token_ids = np.full((batch, size), DraftTree.PAD_TOKEN, np.int32)
    parents = np.full((batch, size), -1, np.int32)
    depths = np.zeros((batch, size), np.int32)
    log_probs = np.full((batch, size), -np.inf, np.float32)
    mask = np.tile(np.eye(size, dtype=np.bool_), (batch, 1, 1))
    leaves = []
    for number, row in enumerate(rows):
        count = len(row.token_ids)
        token_ids[number, :count], parents[number, :count] = row.token_ids, row.parents
        log_probs[number, :count] = row.log_probs
        paths: list[list[int]] = []
        for node, parent in enumerate(row.parents):
            paths.append([node] if parent < 0 else [*paths[parent], node])
            depths[number, node] = len(paths[-1]) - 1
            mask[number, node, paths[-1]] = True
        inner = set(row.parents)
        leaves.append([path for node, path in enumerate(paths) if node not in inner])
    most = max((len(row) for row in leaves), default=0)
    longest = max((len(path) for row in leaves for path in row), default=0)
    leaf_paths: Any = np.full((batch, most, longest), -1, np.int32)
    for number, found in enumerate(leaves):
        for place, path in enumerate(found):
            leaf_paths[number, place, : len(path)] = path
    counts = np.array([len(row.token_ids) for row in rows], np.int32)
    return DraftTree(token_ids, parents, depths, log_probs, counts, mask, leaf_paths)
