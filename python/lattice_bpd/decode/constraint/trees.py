"""Trees of drafts under a constraint: what it forbids is cut off, what it foresees is added."""

from __future__ import annotations

from collections.abc import Sequence

from lattice_bpd.decode.constraint.place import Place
from lattice_bpd.draft.draft_tree import DraftTree
from lattice_bpd.draft.growing_tree import Nodes, build_draft_tree
from lattice_bpd.draft.search import MAX_NODES
from lattice_bpd.verify.prefix_tree import PrefixTree

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
    for node, (parent, token) in enumerate(zip(tree.parents, tree.token_ids, strict=True)):
        above = kept.get(parent)
        below = None if above is None else found.add(above, token)
        if below is not None:
            kept[node] = below
    if extend:
        found.add_expected(room)
    return PrefixTree(found.token_ids, found.parents)


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
    return build_draft_tree([_nodes_of(trees, row, kept) for row, kept in enumerate(rows)])


def _nodes_of(trees: DraftTree, row: int, kept: list[int]) -> Nodes:
    """The kept nodes of a row, under their new numbers."""
    numbers = {-1: -1, **{node: number for number, node in enumerate(kept)}}
    return Nodes(
        trees.token_ids[row, kept].tolist(),
        [numbers[parent] for parent in trees.parents[row, kept].tolist()],
        trees.log_probs[row, kept].tolist(),
    )


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
