"""Which texts are read next, and which of them in one call.

They are read from the shortest to the longest: the rows of a batch have similar lengths, and a call
little padding. What a text shares with one in a row, such as a system message, is copied.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from lattice_bpd.decode.loop.request import Request, Start
from lattice_bpd.token_ids import count_shared
from lattice_bpd.verify.memory import free_memory
from lattice_bpd.verify.rows import Rows

_POSITIONS = 32_768  # cache positions of a batch, rows x longest text, unless on a GPU
_SHARE = 0.3  # of the free memory of a GPU; growing takes nearly twice as much for a while
_EXPECTED = 512  # new tokens of a text that are planned, unless on a GPU; the cache can grow
_READ = 2048  # tokens of a call that reads several texts, padding included
_PADDING = 64  # tokens that take less time than another call, unless on a GPU
_PADDING_ON_GPU = 2048
_FEW = 8  # texts that are not read before half as many rows are free
_BALANCE = 1_024  # tokens of a text whose attention takes as long as all else of its call


class Group(NamedTuple):
    """Texts that are read in one call.

    Attributes:
        requests: the texts.
        source: has the first tokens of all of them.
        start: how many.
        num_rows: that the cache is to have.
        positions: that it is to have.
    """

    requests: list[Request]
    source: Start
    start: int
    num_rows: int
    positions: int


class Waiting:
    """Texts that wait for a row.

    Args:
        target: says which texts may begin with what others have read.
        most_rows: texts that are decoded at once.
        num_drafts: most draft tokens of a call.

    Attributes:
        requests: the texts, the longest first.
        most_positions: of the cache, rows x longest text.
    """

    def __init__(self, target: Any, most_rows: int, num_drafts: int) -> None:
        self._target, self._most_rows, self._num_drafts = target, most_rows, num_drafts
        is_gpu = target.device.type == "cuda"
        self._most_padding = _PADDING_ON_GPU if is_gpu else _PADDING
        self._expected = math.inf if is_gpu else _EXPECTED
        self._longest = 0  # positions of a text that was read
        self.requests: list[Request] = []
        self.most_positions = math.inf

    def add(self, request: Request) -> None:
        """Add a text."""
        insort(self.requests, request, key=lambda one: (-len(one.state.tokens), -one.number))

    def positions(self, request: Request) -> int:
        """Cache positions that a text is expected to need."""
        state = request.state
        new = min(state.limit + self._num_drafts, self._expected)
        return len(state.tokens) + int(new) + 1

    def next(self, active: Sequence[Request], last: Start) -> Group | None:
        """Take the texts that are read now; None: none, or not yet.

        Args:
            active: texts in the first rows.
            last: the last text that has ended; its row still has it while no text is active.
        """
        waiting, most_rows = self.requests, self._most_rows
        if not waiting or len(active) >= most_rows:
            return None
        longest = max(self._longest, self.positions(waiting[-1]))
        if len(active) >= self._count_rows(longest):
            return None
        source, start = self._find_start(waiting[-1], active, last)
        first = waiting[-1].state.tokens
        count, shared, longest_yet, repeated = 0, start, 0, 0
        for one in waiting[: -most_rows - 1 : -1]:
            tokens = one.state.tokens
            common = min(shared, count_shared(source.tokens, tokens))
            padding = count * (len(tokens) - longest_yet + shared - common)
            joins = padding <= self._most_padding and (count + 1) * (len(tokens) - common) <= _READ
            joins = joins and common >= start // 2 and not (one.start or source.saved)
            if count and not joins:
                break
            own = min(count_shared(first, tokens), len(tokens) - 1)
            repeated += own if count and _is_worth(own, tokens) else 0
            count, shared, longest_yet = count + 1, common, len(tokens)
        if not start and repeated > self._most_padding and self._shares(waiting[-count]):
            count = 1  # the others copy what they share with it
        rows = self._count_rows(max(longest, self.positions(waiting[-count])))
        if 2 * (rows - len(active)) < min(count, rows, _FEW):
            return None
        count = min(count, rows - len(active))
        self._longest = max(longest, self.positions(waiting[-count]))
        rows = min(rows, len(active) + len(waiting))
        return Group([waiting.pop() for _ in range(count)], source, shared, rows, self._longest)

    def _count_rows(self, positions: int) -> int:
        return int(min(self._most_rows, count_rows(positions, self.most_positions)))

    def _shares(self, request: Request) -> bool:
        """Whether a text may begin with what another one has read."""
        state = request.state
        return bool(self._target.allows_parts(len(state.tokens) + state.limit))

    def _find_start(
        self, request: Request, active: Sequence[Request], last: Start
    ) -> tuple[Start, int]:
        """The text that shares most tokens with one, and how many are worth a copy."""
        tokens = request.state.tokens
        if request.start is not None:
            return request.start, min(len(request.start.tokens), len(tokens) - 1)
        if not self._shares(request):
            return Start([]), 0
        sources = [Start(one.state.tokens[:-1], row) for row, one in enumerate(active)] or [last]
        shared, number = max((count_shared(s.tokens, tokens), n) for n, s in enumerate(sources))
        shared = min(shared, len(tokens) - 1)
        return sources[number], shared if _is_worth(shared, tokens) else 0


def _is_worth(shared: int, tokens: Sequence[int]) -> bool:
    """Whether a text is read faster after a copy of its first tokens.

    After a start attention needs a mask, and takes twice the time.
    """
    return shared * (shared + _BALANCE) >= (len(tokens) - shared) ** 2


def count_rows(positions: int, most: float | None = None) -> float:
    """How many texts of a length a batch has at most; by default on a CPU."""
    return max(1.0, (_POSITIONS if most is None else most) / positions)


def count_positions(rows: Rows, device: torch.device) -> float:
    """The most cache positions of a batch."""
    if device.type != "cuda":
        return _POSITIONS
    return _SHARE * free_memory(device) / rows.position_bytes
