"""An index of the suffixes of a text, to find earlier occurrences of its last tokens."""

from __future__ import annotations

from collections.abc import Iterable

LONGEST_MATCH = 8


class SuffixIndex:
    """The text so far, with the last occurrence of each of its short n-grams."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}
        self._match = 0  # end of the last earlier occurrence of the longest suffix; 0 for none

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        for token in tokens:
            self.tokens.append(token)
            end, self._match = len(self.tokens), 0
            for size in range(1, min(LONGEST_MATCH, end) + 1):
                ngram = tuple(self.tokens[end - size :])
                self._match = self._ends.get(ngram, self._match)
                self._ends[ngram] = end

    def look_up(self, count: int) -> list[int]:
        """What followed the longest suffix that occurred earlier; empty without one.

        Past the end of the text the drafted tokens are repeated: 1 2 3 1 2 continues with 3 1 2 3.
        """
        known = self.tokens[self._match : self._match + count] if self._match else []
        return [known[at % len(known)] for at in range(count)] if known else []
