"""Where the last tokens of a text stood earlier in it, and what followed them there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
            self.append(token)

    def append(self, token: int) -> tuple[int, int]:
        """Append a token, and say what `find` said before."""
        end = len(self.tokens)
        last = tuple(self.tokens[-self.longest :])
        found, size, behind = 0, 0, self._behind
        for first in range(len(last) - 1, -1, -1):
            piece = last[first:]
            start = behind.get(piece)
            if start is not None:
                found, size = start, len(piece)
            behind[piece] = end
        self.tokens.append(token)
        return found, size

    def find(self, path: Sequence[int] = ()) -> tuple[int, int]:
        """Where the longest suffix that stood earlier stood last, and its tokens.

        Args:
            path: (n,) ints, tokens behind the text that it may get.

        Returns:
            The place behind it and its length; (0, 0) for none. Tokens 1 2 3 1 2: the suffix 1 2
            stood at the start, so (2, 2). Behind them the path 3: the suffix 1 2 3 did, so (3, 3).
        """
        last = (*self.tokens[-self.longest :], *path)[-self.longest :]
        found, size = 0, 0
        while size < len(last):  # where a piece stood, its own suffixes stood, too
            start = self._behind.get(last[len(last) - size - 1 :])
            if start is None:
                break
            found, size = start, size + 1
        return found, size

    def follow(self, start: int, count: int, path: Sequence[int] = ()) -> Iterator[int]:
        """`count` tokens from a place on that `find` has found.

        What reaches the end of the text goes on with what was drafted (Ziv and Lempel 1977), so
        that a loop is drafted as often as there is room. Tokens 1 2 3 1 2: the suffix 1 2 stood at
        the start, so from 2 on 3 1 2 followed, and then 3 again.
        """
        known = len(self.tokens)
        period = known + len(path) - start
        for number in range(count):
            place = start + number % period
            yield self.tokens[place] if place < known else path[place - known]

    def look_up(self, count: int) -> list[int]:
        """`count` tokens from the place on that `find` gives; none where it finds nothing."""
        start, size = self.find()
        return list(self.follow(start, count)) if size > 0 else []
