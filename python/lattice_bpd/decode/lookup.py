"""Prompt lookup: draft what followed the last tokens when they stood earlier in the text.

It needs neither heads nor another model, and helps where output repeats its prompt or itself: code
that is edited, text that is summed up or translated with names in it, loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lattice_bpd import Drafts
from lattice_bpd.decode.by_sequence import BySequence
from lattice_bpd.decode.drafters import Drafter
from lattice_bpd.decode.state import DecodeState

LONGEST_MATCH = 8  # tokens; longer matches seldom tell more


class SuffixIndex:
    """The text so far, and where each of its short pieces stood last.

    Args:
        longest: tokens of the longest piece.
    """

    def __init__(self, longest: int = LONGEST_MATCH) -> None:
        self.longest = longest
        self.tokens: list[int] = []
        self._behind: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append (n,) ints."""
        for token in tokens:
            end = len(self.tokens)
            for size in range(1, min(self.longest, end) + 1):
                self._behind[tuple(self.tokens[end - size :])] = end
            self.tokens.append(token)

    def find(self) -> tuple[int, int]:
        """Where the longest suffix that stood earlier stood last, and its tokens.

        Returns:
            The place behind it and its length; (0, 0) for none. Tokens 1 2 3 1 2: the suffix 1 2
            stood at the start, so (2, 2).
        """
        for size in range(min(self.longest, len(self.tokens)), 0, -1):
            start = self._behind.get(tuple(self.tokens[-size:]))
            if start is not None:
                return start, size
        return 0, 0

    def look_up(self, count: int) -> list[int]:
        """`count` tokens behind the latest earlier place of the longest matching suffix, or none.

        What reaches the end of the text goes on with what was drafted (Ziv and Lempel 1977), so
        that a loop is drafted as often as there is room. Tokens 1 2 3 1 2: the suffix 1 2 stood at
        the start, so 3 1 2 followed, and then 3 again.
        """
        start, size = self.find()
        if size == 0:
            return []
        period = len(self.tokens) - start
        return [self.tokens[start + place % period] for place in range(count)]


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
        self._indexes = BySequence(lambda _state: SuffixIndex(max_ngram))

    def propose(self, state: DecodeState) -> Drafts | None:
        """(1, 1, num_slots) token ids; the score is the length of the match. None without one."""
        with state.stats.stage("lookup"):
            index = self._indexes.of(state)
            if len(index.tokens) > len(state.tokens):
                index = self._indexes.renew(state)
            index.extend(state.tokens[len(index.tokens) :])
            _, size = index.find()
            if size < self.min_ngram:
                return None
            most = state.num_slots if self.num_slots is None else state.room
            found = index.look_up(min(most, self.max_nodes))
        token_ids: Any = np.array(found, np.int32)[None, None]
        return Drafts(token_ids, np.full((1, 1), size, np.float32), np.ones(1, np.int32))

    def propose_batch(self, states: Sequence[DecodeState]) -> list[Drafts | None]:
        """One proposal for each state."""
        return [self.propose(state) for state in states]

    def kind_of(self, drafts: Drafts, row: int, place: int) -> int:
        """Drafts of one kind are kept about as often: the length of the match."""
        return int(drafts.scores[row, place])
