"""Steps that strategy "auto" learns from: one that is looked at, and those between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from lattice_bpd.decode.adaptive.experience import Book
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.verify.prefix_tree import PrefixTree

_AMISS = 2.0  # see Gap.is_amiss
_BARELY = 0.9  # of the tokens that greedy steps would have given; less is news


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

    def is_of(self, states: Sequence[DecodeState]) -> bool:
        """Whether these are the same sequences: they leave a batch, but none joins it."""
        mine = self.states
        return len(mine) == len(states) and mine[0] is states[0]

    def has_any(self, states: Sequence[DecodeState]) -> bool:
        """Whether one of these is among them."""
        mine = set(map(id, self.states))
        return any(id(state) in mine for state in states)


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
        promised: tokens of each sequence expected of a step.
    """

    before: Before
    sizes: tuple[int, ...]
    book: Book
    starts: list[float] = field(default_factory=list)
    promised: float = field(init=False)

    def __post_init__(self) -> None:
        kept = [self.book.kept.get(size, 0.0) for size in self.sizes]
        self.promised = 1.0 + sum(kept) / len(kept)

    def gained(self) -> float:
        """Tokens of each sequence since the gap began."""
        before = self.before
        written = sum(
            len(state.tokens) - n for state, n in zip(before.states, before.lengths, strict=True)
        )
        return written / len(before.states)

    def is_amiss(self) -> bool:
        """Whether steps gave less than half of what was expected of them, or more than double."""
        promised = len(self.starts) * self.book.balance.believed(self.promised)
        return not promised / _AMISS <= self.gained() <= promised * _AMISS

    def is_news(self, now: float) -> bool:
        """Whether that has to be looked into: it is amiss, or drafts have not paid."""
        if self.sizes == (0,):
            return False
        least = (now - self.starts[0]) / self.book.costs.at(0)
        return self.gained() < _BARELY * least or self.is_amiss()

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
