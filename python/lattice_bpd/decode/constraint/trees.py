"""Trees of drafts under a constraint: what it forbids is cut off, what it foresees is added."""

from __future__ import annotations

from lattice_bpd.decode.constraint.place import Place
from lattice_bpd.verify import PrefixTree

MOST_EXPECTED = 32  # nodes that a constraint adds to the drafts of a step, at most


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
