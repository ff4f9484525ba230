"""Prompt lookup: draft what followed the last tokens when they stood earlier in the text.

A baseline without heads: it helps where output repeats its prompt or itself, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lattice_bpd import Drafts
from lattice_bpd.decode import DecodeState
from lattice_bpd.decode.drafters import Drafter

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

    def look_up(self, count: int) -> list[int]:
        """`count` tokens behind the latest earlier place of the longest matching suffix, or none.

        What reaches the end of the text goes on with what was drafted (Ziv and Lempel 1977), so
        that a loop is drafted as often as there is room. Tokens 1 2 3 1 2: the suffix 1 2 stood at
        the start, so 3 1 2 followed, and then 3 again.
        """
        for size in range(min(self.longest, len(self.tokens)), 0, -1):
            start = self._behind.get(tuple(self.tokens[-size:]))
            if start is not None:
                period = len(self.tokens) - start
                return [self.tokens[start + place % period] for place in range(count)]
        return []


class PromptLookupDrafter(Drafter):
    """One draft: what followed the longest suffix of the text that stood in it before.

    Use an object for each prompt.

    Args:
        longest: tokens of the longest suffix looked for.
    """

    def __init__(self, longest: int = LONGEST_MATCH) -> None:
        self._index = SuffixIndex(longest)

    def propose(self, state: DecodeState) -> Drafts | None:
        """(1, 1, num_slots) token ids; None where nothing matches."""
        self._index.extend(state.tokens[len(self._index.tokens) :])
        found = self._index.look_up(state.num_slots)
        if not found:
            return None
        token_ids: Any = np.array(found, np.int32)[None, None]
        return Drafts(token_ids, np.zeros((1, 1), np.float32), np.ones(1, np.int32))

    def observe(self, accepted: Sequence[int]) -> None:
        """Notes are taken from the state; defined so that prompts do not share a drafter."""
        del accepted
