"""Lengths of a batch's drafts, by the measured time of the engine's steps."""

from __future__ import annotations

import functools
import json
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd_vllm.batch import EngineStep

_GRID = sorted({0, *(n << shift for n in (1, 3) for shift in range(20))})
"""Draft tokens of a step, rounded up to: few sizes, since the first step of each is slow."""

_LEAST_GAIN = 0.05  # of the mean speed: nothing is drafted for what errors of estimates hide
_SHARE = 0.005  # of the time, for searches that draft nothing, and lost by trials of drafts
_TRIAL = 64  # steps after which the other choice is tried again; fewer at first
_RECENT, _OLD = 8, 512  # steps of a size that are kept; steps after which they no longer count
_RENEWED = 8  # steps after which times are computed again; fewer at first
_FEW = 3  # steps from which on a low time is no chance
_RATE = 0.2  # weight of a new gain
_BUCKETS, _PRIOR, _KEEP = 12, 4.0, 0.995  # of probabilities: number, tokens, weight of the past
_FORGET = 0.98  # of the longest draft, for each step: twice as long ones are searched


class DraftLengths:
    """How many tokens of each draft to verify, so that most tokens per second are expected.

    An engine's step reads the draft tokens of all requests in one forward pass without padding, so
    its time depends on their sum, and measurements are kept by that sum and the number of requests.
    The draft of one request slows the others down, so what is maximized is the geometric mean of
    the requests' speeds: (product of 1 + sum of a draft's probabilities)^(1 / requests) / time. The
    draft tokens that multiply it most are verified, as many as pay.

    Args:
        num_tokens: draft tokens that the engine verifies at most for a request.
        has_slots: whether heads or a block drafter are a source.
        may_pause: False where other processes read the same slots together with this one, so that
            every step must read them.
    """

    def __init__(self, num_tokens: int, *, has_slots: bool, may_pause: bool) -> None:
        self._num_tokens, self._has_slots, self._may_pause = num_tokens, has_slots, may_pause
        self._batches: dict[int, _Batch] = {}
        self._current = 0, _Batch(0, num_tokens)
        self._last: tuple[list[str], float] | None = None

    def observe(self, step: EngineStep, now: float) -> None:
        """Add the time since `finish`, if no prompt was read in it.

        Args:
            step: the engine's.
            now: when it was over, in seconds.
        """
        last, self._last = self._last, None
        count = len(step.kept)
        if last is None or count == 0 or not all(step.kept):
            return
        names = step.names[:count]
        if names == last[0] or set(names).issubset(last[0]):
            self._batch(count).add_step(sum(step.verified or ()), now - last[1])

    def finish(self, step: EngineStep, now: float) -> None:
        """Drafts are ready, and the engine's next step begins."""
        names = zip(step.names, step.kept, strict=False)
        self._last = [name for name, tokens in names if tokens], now

    @property
    def is_timing(self) -> bool:
        """Whether `observe` measures the step that ends."""
        return self._last is not None

    def is_paused(self, count: int) -> bool:
        """Whether nothing is searched in this step, since drafts rarely pay and searches cost time.

        Args:
            count: requests of the batch.
        """
        batch = self._batch(count)
        if batch.pause == 0 or not self._may_pause:
            return False
        batch.pause -= 1
        return True

    def reads_slots(self, count: int) -> bool:
        """Whether this step reads the heads: where drafts gain more with them, time included.

        Args:
            count: requests of the batch.
        """
        if not self._has_slots or not self._may_pause:
            return self._has_slots
        batch = self._batch(count)
        batch.searches += 1
        is_trial = batch.searches % (2 if batch.searches <= _TRIAL // 4 else _TRIAL) == 0
        return (batch.gains[True] >= batch.gains[False]) != is_trial

    def choose(
        self,
        probs: Sequence[Sequence[float]],
        count: int,
        own_seconds: float,
        *,
        with_slots: bool,
    ) -> list[int]:
        """The length of each draft.

        Args:
            probs: for each draft the probabilities of its prefixes, which do not increase.
            count: requests of the batch.
            own_seconds: time that this step's drafts took.
            with_slots: whether they were drafted with slots.
        """
        batch, lengths = self._batch(count), [0] * len(probs)
        if not batch.num_plain:
            return lengths
        added = []  # what each token adds to the logarithm of its request's speed
        for request, prefixes in enumerate(probs):
            expected, before = 1.0, 0.0
            for prob in prefixes:
                expected += prob
                log = math.log(expected)
                added.append((before - log, request))
                before = log
        added.sort()  # a prefix precedes what extends it, since they add ever less
        del added[max(2 * batch.largest, count) :]
        times = batch.times(len(added))
        plain = times[0] + own_seconds
        # The largest sum of each time; the most promising trial is of a token for each request.
        logs = [0.0, *accumulate(-less for less, _ in added)]
        sums = [min(size, len(added)) for size in _GRID[: len(times)]]
        gains = [
            math.exp(logs[size] / count) * plain / (time + own_seconds)
            for size, time in zip(sums, times, strict=True)
        ]
        gain, trial_gain = max(gains), max(gains[bisect_left(sums, min(count, len(added))) :])
        if gain < 1.0 + _LEAST_GAIN:
            gain = 1.0
        size = sums[gains.index(gain)]
        is_trial = bool(added) and batch.is_trial_due(size, trial_gain)
        mean = batch.gains[with_slots]
        mean += _RATE * (gain * times[0] / plain - mean)
        batch.gains[with_slots] = mean
        pays = max(mean, batch.gains[True] if self._has_slots else 0.0) >= 1.0
        if size == 0 and not is_trial and not with_slots and not pays:
            batch.pause = min(int(own_seconds / times[0] / _SHARE), _TRIAL)
        if is_trial:
            size = 0 if size else sums[gains.index(trial_gain)]
        for _, request in added[:size]:
            lengths[request] += 1
        batch.longest = max(_FORGET * batch.longest, *lengths, 1.0)
        return lengths

    def limits(self, count: int, most: int) -> tuple[int, npt.NDArray[np.float64] | None]:
        """What to search: longer drafts are not verified lately, and improbable tokens do not pay.

        After a step without drafts, whose cost may be overestimated, all that may be tried.

        Args:
            count: requests of the batch.
            most: tokens of the longest draft.

        Returns:
            Tokens of the longest draft, n, and the costs of 0 to n tokens; None: they cost nothing.
        """
        batch = self._batch(count)
        most = min(most, int(2 * batch.longest))
        return most, None if batch.was_plain else batch.costs[: most + 1]

    def describe_costs(self) -> str:
        """Times of the steps of one request, as a file of `lattice-bpd build --costs`; "" at first.

        JSON: milliseconds by draft tokens.
        """
        known = self._batches[1].recent if 1 in self._batches else {}
        times = {size: round(1e3 * _low(known[size]), 3) for size in sorted(known)}
        return json.dumps(times) if len(times) > 1 else ""

    def _batch(self, count: int) -> _Batch:
        """What is known of batches of about so many requests: exact to 7, within 25 % above."""
        if count == self._current[0]:
            return self._current[1]
        grain = 1 << max(count.bit_length() - 3, 0)
        rounded = -(-count // grain) * grain
        if rounded not in self._batches:
            self._batches[rounded] = _Batch(rounded, self._num_tokens)
        self._current = count, self._batches[rounded]
        return self._current[1]


class _Batch:
    """What is known of the steps of a number of requests.

    Args:
        count: the requests.
        num_tokens: draft tokens of a request, at most.

    Attributes:
        costs: (num_tokens + 1,) of a search.
        was_plain: whether the last step had no drafts.
        recent: seconds of recent steps by their draft tokens, rounded up.
        largest: draft tokens of the largest step so far; the next one has at most twice as many, or
            one for each request.
        longest: tokens of the longest draft, lately.
        num_plain: steps without drafts.
        pause: steps to come without a search.
        searches: steps with a search.
        gains: mean expected speed relative to that of plain decoding, own time included, with
            slots (True) and without.
    """

    def __init__(self, count: int, num_tokens: int) -> None:
        self._count, self.costs = count, _search_costs(-20, num_tokens + 1)
        self.was_plain = True
        self.recent: dict[int, deque[float]] = {}
        self._drafts: deque[tuple[int, float]] = deque(maxlen=2 * _RECENT)
        self._seen: dict[int, int] = {}
        self.num_plain = self._num_drafts = self._same = self.pause = self.searches = 0
        self.largest, self.longest, self._times = 0, float(num_tokens), list[float]()
        self.gains = {False: 1.0, True: 1.0}

    def add_step(self, size: int, seconds: float) -> None:
        """Add the time of a step with so many draft tokens."""
        self._same = self._same + 1 if self.was_plain == (size == 0) else 1
        self.was_plain = size == 0
        self.largest = max(self.largest, size)
        if size:
            self._num_drafts += 1
        else:
            self.num_plain += 1
        now = self.num_plain + self._num_drafts
        rounded = _GRID[bisect_left(_GRID, size)]
        self.recent.setdefault(rounded, deque(maxlen=_RECENT)).append(seconds)
        self._seen[rounded] = now
        if size:
            self._drafts.append((size, seconds))
        if now % _RENEWED == 0 or now < _OLD // _RENEWED:
            for old in [one for one, last in self._seen.items() if one and now - last >= _OLD]:
                del self.recent[old], self._seen[old]
            self._times = []

    def times(self, size: int) -> list[float]:
        """Seconds of steps of `_GRID` draft tokens, to `size` or more.

        Of recent steps a low one counts, since interruptions only add time. Sizes of fewer than
        three steps are on a line of a low slope of recent ones.
        """
        count = bisect_left(_GRID, size) + 1
        if len(self._times) < count:
            seconds = _low(self.recent[0])
            slopes = [(one - seconds) / size for size, one in self._drafts] or [0.0]
            slope, known, times = max(_low(slopes), 0.0), 0, []
            cost = max(self._count * slope / seconds, 1e-6)
            self.costs = _search_costs(math.frexp(cost)[1], len(self.costs))
            for one in _GRID[:count]:
                recent = self.recent.get(one, ())
                if one and len(recent) >= _FEW:
                    seconds, known = _low(recent), one
                times.append(seconds + slope * (one - known))
            self._times = times
        return self._times

    def is_trial_due(self, size: int, gain: float) -> bool:
        """Whether to do the other than to verify `size` draft tokens, to measure it again.

        Args:
            size: what is best; 0: no drafts.
            gain: speed with the drafts to try, relative to none.
        """
        if self.was_plain != (size == 0):
            return False
        often: float = min(4 * (1 + min(self.num_plain, self._num_drafts)), _TRIAL)
        if size == 0 and self._num_drafts >= _FEW:
            often = max(often, (1.0 / gain - 1.0) / _SHARE)
        return self._same >= often


@functools.cache
def _search_costs(exponent: int, size: int) -> npt.NDArray[np.float64]:
    """(size,) of 0, 1, .. tokens: they end at tokens that are not worth a quarter of their time.

    Args:
        exponent: a token costs all requests less than 2^exponent of a step.
        size: numbers of tokens.
    """
    cost: float = 2.0 ** min(exponent - 2, -2)
    return 1.0 + cost * np.arange(size, dtype=np.float64)


def _low(values: Sequence[float] | deque[float]) -> float:
    return sorted(values)[(len(values) - 1) // 3]


class Calibration:
    """Probabilities of draft tokens by what was accepted of those that were verified.

    A mixture that knows little of a text, such as its first words alone, is overconfident.
    """

    def __init__(self) -> None:
        # The last one is of probability 1.
        self._expected = [_PRIOR * (n + 0.5) / _BUCKETS for n in range(_BUCKETS + 1)]
        self._accepted = list(self._expected)
        self._drafted: dict[str, Sequence[float]] = {}

    def observe(self, step: EngineStep) -> None:
        """Learn from the drafts of `note` that the engine verified in this step."""
        drafted, self._drafted = self._drafted, {}
        for name, kept, count in zip(step.names, step.kept, step.verified or (), strict=False):
            probs = drafted.get(name, ())
            if not kept or len(probs) != count:
                continue
            for number, prob in enumerate(probs, 1):
                n = int(prob * _BUCKETS)
                self._expected[n] = _KEEP * self._expected[n] + prob
                self._accepted[n] = _KEEP * self._accepted[n] + (number < len(kept))

    def note(self, drafted: dict[str, Sequence[float]]) -> None:
        """The probabilities of the drafts that the engine verifies next, by name of request."""
        self._drafted = drafted

    def adjust(self, probs: Sequence[float]) -> list[float]:
        """Probabilities of a draft's prefixes, which do not increase, by what is accepted."""
        adjusted, least = [], 1.0
        for prob in probs:
            n = int(prob * _BUCKETS)
            least = min(least, prob * self._accepted[n] / self._expected[n])
            adjusted.append(least)
        return adjusted


class WholeDrafts:
    """Verifies whole drafts in every step, for engines whose steps have a fixed size."""

    is_timing = False

    def observe(self, step: EngineStep, now: float) -> None:
        """Times decide nothing."""

    def finish(self, step: EngineStep, now: float) -> None:
        """Times decide nothing."""

    def is_paused(self, count: int) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def reads_slots(self, count: int) -> bool:  # noqa: ARG002
        """Never: this is for drafts without heads."""
        return False

    def choose(self, probs: Sequence[Sequence[float]], *_: Any, **__: Any) -> list[int]:
        """All of each draft."""
        return [len(one) for one in probs]

    def limits(self, count: int, most: int) -> tuple[int, None]:  # noqa: ARG002
        """As the engine verifies."""
        return most, None

    def describe_costs(self) -> str:
        """Nothing is measured."""
        return ""
