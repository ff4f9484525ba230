"""Where the last tokens of a text stood earlier in it, and what followed them there."""

from __future__ import annotations

from lattice_bpd import _core

LONGEST_MATCH = 8  # kLongestMatch of decode/repeats.h


class SuffixIndex(_core.SuffixIndex):
    """The text so far, and where each of its short pieces stood last.

        index.append(token)                    appends a token, and says what `find` said before
        index.extend(tokens)                   appends n ints
        index.find(path=[])                    (place, size) of the longest suffix of text and path
                                               that stood earlier in the text: where it stood last,
                                               the place behind it; (0, 0) for none
        index.follow(place, count, path=[])    `count` tokens from such a place on; what reaches the
                                               end goes on with what was drafted
        index.tokens                           the text, a copy

    Tokens 1 2 3 1 2: the suffix 1 2 stood at the start, so `find` gives (2, 2), and 3 1 2 followed,
    and then 3 again. Behind the path 3 the suffix is 1 2 3, and (3, 3) is found.

    Args:
        longest: tokens of the longest piece.

    Raises:
        ValueError: longest below 1, or a place behind the end.
    """

    def __init__(self, longest: int = LONGEST_MATCH) -> None:
        super().__init__(longest)

    def look_up(self, count: int) -> list[int]:
        """`count` tokens from the place on that `find` gives; none where it finds nothing."""
        place, size = self.find()
        return self.follow(place, count) if size > 0 else []
