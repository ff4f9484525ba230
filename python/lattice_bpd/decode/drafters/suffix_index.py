"""An index of the suffixes of a text, to find earlier occurrences of its last tokens."""

from __future__ import annotations

from lattice_bpd import _core

LONGEST_MATCH = 8  # kLongestMatch of decode/repeats.h


class SuffixIndex(_core.SuffixIndex):
    """The text so far, with the last occurrence of each of its short n-grams.

        index.append(token)                    appends a token; returns what `find` returned before
        index.extend(tokens)                   appends n ints
        index.find(path=[])                    (position, size): size of the longest suffix of text
                                               and path that occurred earlier in the text, and the
                                               position after its last occurrence; (0, 0) for none
        index.follow(position, count, path=[]) `count` tokens from that position; past the end of
                                               the text the drafted tokens are repeated
        index.tokens                           the text, a copy

    Tokens 1 2 3 1 2: the suffix 1 2 occurred at the start, so `find` returns (2, 2), and `follow`
    continues with 3 1 2 3. With path [3] the suffix is 1 2 3, and `find` returns (3, 3).

    Args:
        longest: length of the longest n-gram in tokens.

    Raises:
        ValueError: longest below 1, or a position past the end.
    """

    def __init__(self, longest: int = LONGEST_MATCH) -> None:
        super().__init__(longest)

    def look_up(self, count: int) -> list[int]:
        """`count` tokens from the position that `find` returns; none without a match."""
        position, size = self.find()
        return self.follow(position, count) if size > 0 else []
