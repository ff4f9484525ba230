"""Prompt lookup: drafts what followed an earlier occurrence of the last tokens.

It needs neither heads nor another model. It helps if the output repeats the prompt or itself, as in
code editing, summarization, translation of names, and loops.
"""

from __future__ import annotations

from collections.abc import Sequence

from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.drafters.per_sequence import PerSequence
from lattice_bpd.decode.drafters.suffix_index import SuffixIndex
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.verify.prefix_tree import PrefixTree


class LookupDrafter(Drafter):
    """One draft: what followed the longest suffix of prompt and output that occurred earlier.

    Args:
        max_ngram: tokens of the longest suffix to match, 1 or more.
        draft_length: tokens of a draft, 1 or more; None: the heads' number of slots, or up to 256
            without heads.
        min_ngram: a shorter match drafts nothing.

    Raises:
        ValueError: sizes out of range.
    """

    def __init__(
        self, max_ngram: int = 3, *, draft_length: int | None = 10, min_ngram: int = 1
    ) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(
                f"LookupDrafter: min_ngram is {min_ngram}, max_ngram {max_ngram}; expected 1 or "
                "more, and the first no larger than the second"
            )
        if draft_length is not None and draft_length < 1:
            raise ValueError(f"LookupDrafter: draft_length is {draft_length}; expected 1 or more")
        self.max_ngram, self.min_ngram, self.draft_length = max_ngram, min_ngram, draft_length
        self.max_nodes = 256 if draft_length is None else draft_length
        self._indexes = PerSequence(self._new_index)

    def _new_index(self, _state: DecodeState) -> SuffixIndex:
        return SuffixIndex(self.max_ngram)

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree | None]:
        """A chain for each state; None without a match."""
        return [self._propose(state) for state in states]

    def _propose(self, state: DecodeState) -> PrefixTree | None:
        with state.stats.stage("lookup"):
            index = self._indexes.of(state)
            if len(index) > len(state.tokens):
                index = self._indexes.renew(state)
            index.extend(state.tokens[len(index) :])
            start, size = index.find()
            if size < self.min_ngram:
                return None
            most = state.num_slots if self.draft_length is None else state.max_draft_length
            draft = index.follow(start, min(most, self.max_nodes))
        return PrefixTree.from_drafts(state.tokens[-1], [draft])
