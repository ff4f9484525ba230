"""Steps that strategy "auto" learns from: one that is looked at, and those between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from lattice_bpd.decode.experience import Book
from lattice_bpd.decode.state import DecodeState
from lattice_bpd.verify import PrefixTree


class Before:
    """Sequences as they are before one step or several.

    Attributes:
        states: of them.
        lengths: tokens of each.
        calls: target calls so far.
    """

    def __init__(self, states: Sequence[DecodeState]) -> None:
        self.states = list(states)
        self.lengths = [len(state.tokens) for state in states]
        self.calls: int = states[0].stats.target_calls


@dataclass
class Look:
    """A step that is looked at.

    Attributes:
        before: its sequences.
        start: when its drafting, and the look, had ended.
        draft: seconds that drafting took.
        heed: seconds that looking took.
        size: most draft tokens of a sequence.
        trees: as they are verified; None for a greedy step.
        promised: tokens expected of each sequence.
    """

    before: Before
    start: float = 0.0
    draft: float = 0.0
    heed: float = 0.0
    size: int = 0
    trees: list[PrefixTree] | None = None
    promised: float = 1.0


@dataclass
class Gap:
    """Steps between two looks.

    Attributes:
        before: their sequences.
        sizes: most draft tokens of a sequence; the steps take turns, so that sizes are compared at
            the same pace of the machine: step i has sizes[i % len(sizes)].
        book: counts the steps that are left.
        starts: when each began.
    """

    before: Before
    sizes: tuple[int, ...]
    book: Book
    starts: list[float] = field(default_factory=list)

    def timings(self, end: float) -> list[tuple[int, float, int]]:
        """Size, median seconds and steps of each; hiccups meet all sizes, but not evenly."""
        moments = [*self.starts, end]
        seconds = [after - before for before, after in pairwise(moments)]
        found = []
        for turn, size in enumerate(self.sizes):
            mine = seconds[turn :: len(self.sizes)]
            if mine:
                found.append((size, median(mine), len(mine)))
        return found
