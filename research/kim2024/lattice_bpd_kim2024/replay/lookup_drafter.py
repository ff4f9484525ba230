"""Prompt lookup: drafts what followed an earlier occurrence of the last tokens, a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd_kim2024.record.suffix_index import SuffixIndex


class LookupDrafter(Drafter):
    """One draft, as long as one of heads: what followed the longest suffix that occurred earlier.

    Source: prompt lookup decoding, Saxena 2023.
    """

    def __init__(self) -> None:
        self._indexes: WeakKeyDictionary[DecodeState, SuffixIndex] = WeakKeyDictionary()

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree | None]:
        """A chain for each state; None without a match."""
        return [self._propose(state) for state in states]

    def _propose(self, state: DecodeState) -> PrefixTree | None:
        with state.stats.stage("lookup"):
            index = self._indexes.get(state)
            if index is None or len(index.tokens) > len(state.tokens):
                index = self._indexes[state] = SuffixIndex()
            index.extend(state.tokens[len(index.tokens) :])
            draft = index.look_up(state.num_slots)
        return PrefixTree.from_drafts(state.tokens[-1], [draft]) if draft else None
