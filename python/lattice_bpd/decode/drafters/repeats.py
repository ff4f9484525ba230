"""Extends draft trees with what followed earlier occurrences of the text's last tokens."""

from __future__ import annotations

from lattice_bpd import _core
from lattice_bpd.decode.drafters.per_sequence import PerSequence
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.verify.prefix_tree import PrefixTree


class Repeats:
    """The texts of several sequences, indexed by their suffixes.

    The match of a text is its longest suffix that occurred earlier in it. The tokens that followed
    the match are drafted, after the text and after nodes of the last slot
    (cpp/lattice_bpd/decode/repeats.h).
    """

    def __init__(self) -> None:
        self._texts = PerSequence(_new_text)

    def extend(self, tree: PrefixTree, state: DecodeState, max_nodes: int) -> PrefixTree:
        """The most probable nodes of a tree and of its continuations.

        Args:
            tree: nodes by descending probability, of the heads of the state; not sampled.
            state: the sequence.
            max_nodes: N.

        Returns:
            At most N draft tokens, none deeper than `state.max_draft_length`; the same tree if it
            has no continuation.
        """
        text = self._texts.of(state)
        if len(text) > len(state.tokens):
            text = self._texts.renew(state)
        text.append(state.tokens[len(text) :])
        extended = text.extend_tree(tree._core, state.num_slots, state.max_draft_length, max_nodes)
        return tree if extended is None else PrefixTree._of(extended)

    def __len__(self) -> int:
        """Number of sequences that still exist."""
        return len(self._texts)


def _new_text(_state: DecodeState) -> _core.RepeatingText:
    return _core.RepeatingText()
