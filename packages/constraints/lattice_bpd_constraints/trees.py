"""Prunes draft trees to a constraint and adds forced tokens."""

from __future__ import annotations

from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd_constraints.automaton_state import AutomatonState

MOST_EXPECTED = 32  # most nodes that a constraint adds to a draft tree


def constrain_tree(
    tree: PrefixTree, state: AutomatonState, max_depth: int, *, extend: bool = True
) -> PrefixTree:
    """Remove the nodes that the constraint forbids, and add the tokens that it expects.

    A token that is the only allowed one is certain and needs no call of its own. For forced text,
    such as a key of a JSON schema, the canonical tokens are drafted.

    Args:
        tree: below the exact token. A sampled tree is returned unchanged, since its tokens must not
            be left out or extended.
        state: state after the exact token.
        max_depth: longest draft.
        extend: whether to add expected tokens, up to MOST_EXPECTED nodes.
    """
    if tree.sampled_from is not None:
        return tree
    result = _GrowingTree(tree.token_ids[0], state)
    kept = {0: 0}
    for node, (parent, token) in enumerate(zip(tree.parents, tree.token_ids, strict=True)):
        kept_parent = kept.get(parent)
        added = None if kept_parent is None else result.add(kept_parent, token)
        if added is not None:
            kept[node] = added
    if extend:
        result.add_expected(max_depth)
    return PrefixTree(result.token_ids, result.parents)


class _GrowingTree:
    """A draft tree with the automaton state of each node."""

    def __init__(self, exact_token: int, state: AutomatonState) -> None:
        self.token_ids, self.parents, self.depths = [exact_token], [-1], [0]
        self.states = [state]
        self.children: dict[tuple[int, int], int] = {}

    def add(self, parent: int, token: int) -> int | None:
        """The child of `parent` with this token, added if new; None if it is not allowed."""
        edge = (parent, token)
        if edge in self.children:
            return self.children[edge]
        state = self.states[parent].advance(token)
        if state is None:
            return None
        self.children[edge] = len(self.token_ids)
        self.token_ids.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.states.append(state)
        return self.children[edge]

    def add_expected(self, max_depth: int) -> None:
        """Add the expected tokens of every node, including the added ones."""
        inner = set(self.parents)
        max_nodes = len(self.token_ids) + MOST_EXPECTED
        node = 0
        while node < len(self.token_ids):
            state, parent = self.states[node], node
            expected = state.expected_tokens()
            if not expected and node not in inner:
                expected = state.forced_stop()
            for token in expected:
                if self.depths[parent] == max_depth or len(self.token_ids) == max_nodes:
                    break
                added = self.add(parent, token)
                if added is None:
                    break
                parent = added
            node += 1


def cut_tree(tree: PrefixTree, state: AutomatonState, max_nodes: int) -> PrefixTree:
    """The first nodes of a tree that the constraint allows.

    Args:
        tree: nodes by descending probability.
        state: state after the exact token.
        max_nodes: N, most draft tokens to keep.

    Returns:
        At most N draft tokens. Their probabilities are not renormalized.
    """
    numbers, states = {0: -1}, {0: state}  # of kept nodes; numbers do not count the exact token
    token_ids: list[int] = []
    parents: list[int] = []
    kept: list[int] = []
    nodes = zip(tree.token_ids[1:], tree.parents[1:], strict=True)
    for node, (token, parent) in enumerate(nodes, start=1):
        if len(kept) == max_nodes:
            break
        parent_state = states.get(parent)
        next_state = None if parent_state is None else parent_state.advance(token)
        if next_state is not None:
            states[node], numbers[node] = next_state, len(kept)
            token_ids.append(token)
            parents.append(numbers[parent])
            kept.append(node - 1)
    log_probs = tree.log_probs
    kept_log_probs = None if log_probs is None else log_probs[kept]
    return PrefixTree.from_nodes(tree.exact_token, token_ids, parents, len(kept), kept_log_probs)
