"""Trees of drafts under a constraint: what it forbids is cut off, what it foresees is added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lattice_bpd import DraftTree
from lattice_bpd.decode.constraint.place import Place
from lattice_bpd.drafter.search import MAX_NODES
from lattice_bpd.verify import PrefixTree

MOST_EXPECTED = 32  # nodes that a constraint adds to the drafts of a step, at most
_SPARE = 3  # nodes to search for each that is kept


def constrain_tree(tree: PrefixTree, place: Place, room: int, *, extend: bool = True) -> PrefixTree:
    """The nodes of a tree that a text may take, and the tokens that the constraint foresees.

    Where the constraint allows one token, that one is certain, and needs no call of its own. Where
    it foresees text, such as a key of a JSON schema, the tokens that the tokenizer would write are
    a draft like others.

    Args:
        tree: below the exact token. A tree of drawn tokens stays as it is: of those none may be
            left out, none added.
        place: where the text stands, the exact token counted in.
        room: tokens that may be decoded behind the exact one.
        extend: whether to add what is foreseen, up to MOST_EXPECTED nodes.
    """
    if tree.drawn_from is not None:
        return tree
    found = _Growing(tree.token_ids[0], place)
    kept = {0: 0}
    for node in range(1, len(tree)):
        above = kept.get(tree.parents[node])
        below = None if above is None else found.add(above, tree.token_ids[node])
        if below is not None:
            kept[node] = below
    if extend:
        found.add_expected(room)
    return PrefixTree(found.token_ids, found.parents, found.depths, found.children)


class _Growing:
    """A tree that grows, with the place of each node."""

    def __init__(self, exact_token: int, place: Place) -> None:
        self.token_ids, self.parents, self.depths = [exact_token], [-1], [0]
        self.places = [place]
        self.children: dict[tuple[int, int], int] = {}

    def add(self, above: int, token: int) -> int | None:
        """The node of a token behind another node, old or new; None where it is not allowed."""
        edge = (above, token)
        if edge in self.children:
            return self.children[edge]
        place = self.places[above].advance(token)
        if place is None:
            return None
        self.children[edge] = len(self.token_ids)
        self.token_ids.append(token)
        self.parents.append(above)
        self.depths.append(self.depths[above] + 1)
        self.places.append(place)
        return self.children[edge]

    def add_expected(self, room: int) -> None:
        """What each node foresees, those that are added looked at, too."""
        inner = set(self.parents)
        most = len(self.token_ids) + MOST_EXPECTED
        node = 0
        while node < len(self.token_ids):
            place, below = self.places[node], node
            expected = place.expected_tokens()
            if not expected and node not in inner:
                expected = place.forced_end()
            for token in expected:
                if self.depths[below] == room or len(self.token_ids) == most:
                    break
                added = self.add(below, token)
                if added is None:
                    break
                below = added
            node += 1


def with_spare(max_nodes: int) -> int:
    """Nodes to search, where `cut_trees` is to leave `max_nodes` of them."""
    return max(max_nodes, min(_SPARE * max_nodes, MAX_NODES))


def cut_trees(trees: DraftTree, places: Sequence[Place], max_nodes: int) -> DraftTree:
    """The first nodes of each tree that its text may take.

    Args:
        trees: (B, M) nodes, by falling probability.
        places: of the B texts, the exact token counted in.
        max_nodes: N, most nodes to keep of each.

    Returns:
        (B, N) or fewer nodes. The probabilities stay those among all paths of the lattice.
    """
    rows = [_allowed_nodes(trees, row, place, max_nodes) for row, place in enumerate(places)]
    size = max(map(len, rows))
    counts: Any = np.array([len(kept) for kept in rows], np.int32)
    shape = (len(rows), size)
    token_ids, parents = np.full(shape, -1, np.int32), np.full(shape, -1, np.int32)
    depths, log_probs = np.zeros(shape, np.int32), np.full(shape, -np.inf, np.float32)
    masks: Any = np.zeros((*shape, size), np.bool_) | np.eye(size, dtype=np.bool_)
    for row, kept in enumerate(rows):
        count = len(kept)
        numbers = {-1: -1, **{node: number for number, node in enumerate(kept)}}
        token_ids[row, :count] = trees.token_ids[row, kept]
        parents[row, :count] = [numbers[parent] for parent in trees.parents[row, kept].tolist()]
        depths[row, :count] = trees.depths[row, kept]
        log_probs[row, :count] = trees.log_probs[row, kept]
        masks[row, :count, :count] = trees.attention_mask[row][np.ix_(kept, kept)]
    paths = _leaf_paths(parents, depths, counts)
    return DraftTree(token_ids, parents, depths, log_probs, counts, masks, paths)


def _allowed_nodes(trees: DraftTree, row: int, place: Place, most: int) -> list[int]:
    places: dict[int, Place] = {-1: place}
    kept: list[int] = []
    nodes = zip(trees.token_ids[row].tolist(), trees.parents[row].tolist(), strict=True)
    for node, (token, parent) in enumerate(nodes):
        if len(kept) == most or node == trees.counts[row]:
            break
        above = places.get(parent)
        found = None if above is None else above.advance(token)
        if found is not None:
            places[node] = found
            kept.append(node)
    return kept


def _leaf_paths(parents: Any, depths: Any, counts: Any) -> Any:
    """(B, L, H) nodes down to each leaf, -1 behind a path's end and behind the last leaf."""
    rows: list[list[list[int]]] = []
    for above, count in zip(parents.tolist(), counts.tolist(), strict=True):
        paths: list[list[int]] = []
        for node, parent in enumerate(above[:count]):
            paths.append([*(paths[parent] if parent >= 0 else []), node])
        inner = set(above[:count])
        rows.append([path for node, path in enumerate(paths) if node not in inner])
    shape = (len(rows), max(map(len, rows)), int(depths.max(initial=0)) + 1)
    found: Any = np.full(shape, -1, np.int32)
    for row, leaves in enumerate(rows):
        for number, path in enumerate(leaves):
            found[row, number, : len(path)] = path
    return found
