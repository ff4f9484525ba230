"""Prompt lookup: draft what followed the last tokens when they stood earlier in the text.

It needs neither heads nor another model, and helps where output repeats its prompt or itself: code
that is edited, text that is summed up or translated with names in it, loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lattice_bpd.decode.drafters.basic import Drafter
from lattice_bpd.decode.drafters.per_sequence import BySequence
from lattice_bpd.decode.drafters.suffix_index import SuffixIndex
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.drafts import Drafts


class LookupDrafter(Drafter):
    """One draft: what followed the longest suffix of prompt and output that stood in it before.

    Args:
        max_ngram: tokens of the longest suffix looked for, 1 or more.
        num_slots: tokens of a draft, 1 or more; None: as many as the heads have, without heads all
            that there is room for, up to 256.
        min_ngram: a shorter match drafts nothing.

    Raises:
        ValueError: sizes out of range.
    """

    def __init__(
        self, max_ngram: int = 3, *, num_slots: int | None = 10, min_ngram: int = 1
    ) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(
                f"LookupDrafter: min_ngram is {min_ngram}, max_ngram {max_ngram}; expected 1 or "
                "more, and the first no larger than the second"
            )
        if num_slots is not None and num_slots < 1:
            raise ValueError(f"LookupDrafter: num_slots is {num_slots}; expected 1 or more")
        self.max_ngram, self.min_ngram, self.num_slots = max_ngram, min_ngram, num_slots
        self.max_nodes = 256 if num_slots is None else num_slots
        self._indexes = BySequence(self._new_index)

    def _new_index(self, _state: DecodeState) -> SuffixIndex:
        return SuffixIndex(self.max_ngram)

    def propose(self, state: DecodeState) -> Drafts | None:
        """(1, 1, num_slots) token ids; the score is the length of the match. None without one."""
        with state.stats.stage("lookup"):
            index = self._indexes.of(state)
            if len(index) > len(state.tokens):
                index = self._indexes.renew(state)
            index.extend(state.tokens[len(index) :])
            start, size = index.find()
            if size < self.min_ngram:
                return None
            most = state.num_slots if self.num_slots is None else state.room
            found = index.follow(start, min(most, self.max_nodes))
        token_ids: Any = np.array(found, np.int32)[None, None]
        return Drafts(token_ids, np.full((1, 1), size, np.float32), np.ones(1, np.int32))

    def propose_batch(self, states: Sequence[DecodeState]) -> list[Drafts | None]:
        """One proposal for each state."""
        return [self.propose(state) for state in states]

    def kind_of(self, drafts: Drafts, row: int, place: int) -> int:
        """Drafts of one kind are kept about as often: the length of the match."""
        return int(drafts.scores[row, place])
