"""Trees of a draft model: level by level, one call with tree attention for each.

best     the most probable prefixes under the draft model
sampled  so many children of each node, sampled without replacement
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from torch import Tensor

from lattice_bpd.decode.drafters.cached_reader import CachedReader, ReadTexts
from lattice_bpd.decode.drafters.draft_model.candidates import Best, draw, find_best, probabilities
from lattice_bpd.decode.drafters.growing_tree import GrowingTree
from lattice_bpd.verify.prefix_tree import PrefixTree

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]
AddChildren = Callable[[GrowingTree, int, Int32Array, Float32Array], None]


def grow_best(
    reader: CachedReader,
    texts: ReadTexts,
    logits: Tensor,
    depths: Sequence[int],
    *,
    top_k: int,
    max_nodes: int,
    temperature: float,
) -> list[GrowingTree]:
    """The max_nodes most probable prefixes under the draft model.

    A prefix is at most as probable as the one without its last token. So a node that is not among
    the best so far has no child that will be, and reading the best of each level is enough: the
    tree is exact but for children beyond the `top_k` of their parent.

    Args:
        reader: of the draft model.
        texts: R texts as read.
        logits: (R, V) behind them.
        depths: deepest level of each, 1 or more.
        top_k: children of a node at most.
        max_nodes: N.
        temperature: divides the logits.
    """

    def add_children(tree: GrowingTree, parent: int, ids: Int32Array, scores: Float32Array) -> None:
        above = 0.0 if parent < 0 else tree.log_probs[parent]
        for token, log_prob in zip(ids.tolist(), scores.tolist(), strict=True):
            if log_prob > -math.inf:
                tree.add(token, parent, above + min(log_prob, 0.0))

    def prune(tree: GrowingTree) -> None:
        tree.keep_best(max_nodes)

    best = partial(find_best, top_k=top_k, temperature=temperature)
    return _grow(reader, texts, logits, depths, best, lambda _row: add_children, prune)


def grow_sampled(
    reader: CachedReader,
    texts: ReadTexts,
    logits: Tensor,
    depths: Sequence[int],
    *,
    top_k: int,
    draws: Sequence[int],
    temperature: float,
    generators: Sequence[np.random.Generator],
) -> list[GrowingTree]:
    """A tree drawn from the draft model: draws[j] children of each node of level j.

    Args:
        reader: see `grow_best`, as for texts, logits and depths.
        texts: see there.
        logits: see there.
        depths: see there.
        top_k: k; children are drawn from the k most likely tokens, whose probabilities are made to
            sum to 1.
        draws: children of the exact token, of its children, and so on.
        temperature: divides the logits.
        generators: of each text.
    """

    def children_of(row: int) -> AddChildren:
        def add_children(
            tree: GrowingTree, parent: int, ids: Int32Array, scores: Float32Array
        ) -> None:
            depth = 0 if parent < 0 else tree.depths[parent] + 1
            shares = probabilities(scores)
            above = 0.0 if parent < 0 else tree.log_probs[parent]
            tree.sampled_from[parent + 1] = (ids, shares)
            for place in draw(shares, draws[depth], generators[row]).tolist():
                tree.add(int(ids[place]), parent, above + math.log(shares[place]))

        return add_children

    best = partial(find_best, top_k=top_k, temperature=temperature)
    return _grow(reader, texts, logits, depths, best, children_of, lambda _tree: None)


def _grow(
    reader: CachedReader,
    texts: ReadTexts,
    logits: Tensor,
    depths: Sequence[int],
    find: Callable[[Tensor], Best],
    children_of: Callable[[int], AddChildren],
    prune: Callable[[GrowingTree], None],
) -> list[GrowingTree]:
    trees = [GrowingTree() for _ in depths]
    best = find(logits)
    for row, tree in enumerate(trees):
        tree.failed = bool(best.failed[row])
        if not tree.failed:
            children_of(row)(tree, -1, best.token_ids[row], best.scores[row])
            prune(tree)
    for level in range(1, max(depths)):
        going = [
            level < depths[row] and not tree.failed and level - 1 in tree.depths
            for row, tree in enumerate(trees)
        ]
        if not any(going):
            break
        nothing = PrefixTree([0], [-1])
        forests = [
            PrefixTree(t.token_ids, t.parents) if go else nothing
            for t, go in zip(trees, going, strict=True)
        ]
        ahead = reader.look_ahead(texts, forests)
        for row, tree in enumerate(trees):
            if going[row]:
                _read_level(tree, ahead[row], level - 1, find, children_of(row))
                prune(tree)
    return trees


def _read_level(
    tree: GrowingTree, logits: Tensor, level: int, find: Callable[[Tensor], Best], add: AddChildren
) -> None:
    """Children of all nodes of a level, from (N, V) logits behind the nodes."""
    nodes = [node for node, depth in enumerate(tree.depths) if depth == level]
    best = find(logits[nodes])
    if best.failed.any():
        tree.failed = True
        return
    for place, node in enumerate(nodes):
        add(tree, node, best.token_ids[place], best.scores[place])
