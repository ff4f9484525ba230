"""Where a text repeats itself, a tree of drafts goes on as the text went on before.

A lattice ends at the last slot, and a loop does not. The longest suffix of a text that stood in it
before is its match; what followed there is a draft, behind the text as well as behind nodes of the
last slot. Each token of it is right with the rate at which texts went on like that behind a match
of this length so far, which every token of prompt and output teaches. So its nodes have
probabilities, and compete with those of the lattice for the same budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lattice_bpd import DraftTree, DrawnTree
from lattice_bpd.decode.acceptance import Rate
from lattice_bpd.decode.by_sequence import BySequence
from lattice_bpd.decode.draft_trees import Growth, Nodes, build_draft_tree
from lattice_bpd.decode.state import DecodeState
from lattice_bpd.decode.suffix_index import LONGEST_MATCH, SuffixIndex

_LEAST = math.log(0.02)  # of a token that is worth a place in the tree
_LEAST_GAIN = 0.1  # tokens more that a call must be expected to keep, or the tree stays as it is


class _Text:
    """A text, and how often what followed a match was what follows now.

    Attributes:
        index: of the text.
        rates: behind matches of 0, 1, .. LONGEST_MATCH tokens.
        log_rates: ln of the rates; longer matches count as the longest.
    """

    def __init__(self) -> None:
        self.index = SuffixIndex()
        self.rates = [Rate() for _ in range(LONGEST_MATCH + 1)]
        self.log_rates = [math.log(rate.value) for rate in self.rates]

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            start, size = self.index.append(token)
            if size > 0:
                self.rates[size].add(self.index.tokens[start] == token, 1)
                self.log_rates[size] = math.log(self.rates[size].value)


class Repeats:
    """What the texts of sequences went on with, for the trees drafted behind them.

    One object may serve several sequences at once, each as if it were alone. A token costs 3
    microseconds and 0.9 kB.
    """

    def __init__(self) -> None:
        self._texts = BySequence(lambda _state: _Text())

    def extend(
        self, trees: DraftTree | DrawnTree, states: Sequence[DecodeState], max_nodes: int
    ) -> DraftTree | DrawnTree:
        """The max_nodes most probable nodes of each tree and of what it may go on with.

        Args:
            trees: (B, N) nodes by falling probability, of the heads of the states; no draws.
            states: B sequences.
            max_nodes: N.

        Returns:
            (B, n) nodes, n at most N, none deeper than a state has room for; the trees as they are
            where none of them has anything to go on with.
        """
        grown = [self._grow(trees, row, state, max_nodes) for row, state in enumerate(states)]
        if not any(grown):
            return trees
        return build_draft_tree(
            [nodes or _read(trees, row).best(max_nodes) for row, nodes in enumerate(grown)]
        )

    def __len__(self) -> int:
        """The number of sequences that are still there."""
        return len(self._texts)

    def _grow(
        self, trees: DraftTree | DrawnTree, row: int, state: DecodeState, max_nodes: int
    ) -> Nodes | None:
        """A tree with its continuations; None where these are not worth their places."""
        text, tree, count = self._update(state), _read(trees, row), int(trees.counts[row])
        most, best = min(state.room, max_nodes), max(text.log_rates)
        floor = max(_LEAST, tree.log_probs[-1]) if count >= max_nodes else _LEAST
        _go_on(tree, -1, [], text, most, floor)
        if state.num_slots < state.room:
            for node in range(count):
                last = tree.depths[node] == state.num_slots - 1
                if last and tree.log_probs[node] + best > floor:
                    path = tree.path(node)
                    _go_on(tree, node, path, text, most - len(path), floor)
        if sum(map(math.exp, tree.log_probs[count:])) < _LEAST_GAIN:
            return None
        return tree.best(max_nodes)

    def _update(self, state: DecodeState) -> _Text:
        text = self._texts.of(state)
        if len(text.index.tokens) > len(state.tokens):
            text = self._texts.renew(state)
        text.extend(state.tokens[len(text.index.tokens) :])
        return text


def _read(trees: DraftTree | DrawnTree, row: int) -> Growth:
    count = int(trees.counts[row])
    parts = (trees.token_ids, trees.parents, trees.depths, trees.log_probs)
    return Growth.of_nodes(*(part[row, :count].tolist() for part in parts))


def _go_on(tree: Growth, node: int, path: list[int], text: _Text, most: int, floor: float) -> None:
    """Add to a node up to `most` tokens that followed the match of the text and its path.

    A node has the probability of the one before it times the rate, or its own where that is more;
    new ones that are not above the floor are left out.
    """
    log_prob = 0.0 if node < 0 else tree.log_probs[node]
    start, size = text.index.find(path)
    if size == 0 or log_prob + text.log_rates[size] <= floor:
        return
    for token in text.index.follow(start, most, path):
        log_prob += text.log_rates[size]
        if log_prob <= floor and (node, token) not in tree.children:
            return
        node = tree.merge(token, node, log_prob)
        log_prob = tree.log_probs[node]
        size = min(size + 1, LONGEST_MATCH)
