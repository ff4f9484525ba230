"""Where a text repeats itself, a tree of drafts goes on as the text went on before.

The longest suffix of a text that stood in it before is its match; what followed there is a draft,
behind the text as well as behind nodes of the last slot (cpp/lattice_bpd/decode/repeats.h).
"""

from __future__ import annotations

from collections.abc import Sequence

from lattice_bpd import _core
from lattice_bpd.decode.drafters.per_sequence import BySequence
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.draft_tree import DraftTree
from lattice_bpd.draft.growing_tree import Nodes, build_draft_tree
from lattice_bpd.draft.sampled_tree import DrawnTree
from lattice_bpd.verify.prefix_tree import PrefixTree


class Repeats:
    """What the texts of sequences went on with, for the trees drafted behind them.

    One object may serve several sequences at once, each as if it were alone.
    """

    def __init__(self) -> None:
        self._texts = BySequence(_new_text)

    def extend_tree(self, tree: PrefixTree, state: DecodeState, max_nodes: int) -> PrefixTree:
        """The max_nodes most probable nodes of a tree and of what it may go on with.

        Args:
            tree: nodes by falling probability, of the heads of the state; no draws.
            state: a sequence.
            max_nodes: N.

        Returns:
            At most N draft tokens, none deeper than the state has room for; the tree as it is where
            it has nothing to go on with.
        """
        text = self._update(state)
        found = text.extend_tree(tree._core, state.num_slots, state.room, max_nodes)
        return tree if found is None else PrefixTree._of(found)

    def extend(
        self, trees: DraftTree | DrawnTree, states: Sequence[DecodeState], max_nodes: int
    ) -> DraftTree | DrawnTree:
        """The same for (B, N) nodes; the trees as they are where none of them goes on."""
        read = [_read(trees, row, state) for row, state in enumerate(states)]
        grown = [
            self.extend_tree(tree, state, max_nodes)
            for tree, state in zip(read, states, strict=True)
        ]
        if all(tree is same for tree, same in zip(grown, read, strict=True)):
            return trees
        return build_draft_tree([_nodes(tree.cut(max_nodes, len(tree))) for tree in grown])

    def __len__(self) -> int:
        """The number of sequences that are still there."""
        return len(self._texts)

    def _update(self, state: DecodeState) -> _core.RepeatingText:
        text = self._texts.of(state)
        if len(text) > len(state.tokens):
            text = self._texts.renew(state)
        text.append(state.tokens[len(text) :])
        return text


def _read(trees: DraftTree | DrawnTree, row: int, state: DecodeState) -> PrefixTree:
    """A row as a tree below the exact token."""
    count = int(trees.counts[row])
    return PrefixTree.from_nodes(
        state.tokens[-1],
        trees.token_ids[row, :count],
        trees.parents[row, :count],
        count,
        trees.log_probs[row, :count],
    )


def _nodes(tree: PrefixTree) -> Nodes:
    log_probs = tree.log_probs
    parents = [parent - 1 for parent in tree.parents[1:]]
    return Nodes(tree.token_ids[1:], parents, [] if log_probs is None else log_probs.tolist())


def _new_text(_state: DecodeState) -> _core.RepeatingText:
    return _core.RepeatingText()
