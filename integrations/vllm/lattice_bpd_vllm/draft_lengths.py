"""Lengths of a batch's drafts, by the measured time of the engine's steps."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd.decode.drafters.call_costs import SIZES
from lattice_bpd.decode.drafters.mixture import ROUNDED_UP
from lattice_bpd_vllm.batch import EngineStep

_OWN_SHARE = 0.005  # time of searches that draft nothing, as a share of the steps' time
_LONGEST_PAUSE = 64  # steps
_WORTH = 2.0  # searches do not pause while they gain so many times their own time
_RETRY = 64  # least number of steps without drafts, after which one is drafted to measure again
_TRIAL_SHARE = 0.005  # expected loss by either, as a share of the steps' time
_PLAIN = (4, 64)  # steps with drafts after which one has none, to measure it: fewest, most
_FIRST_PLAIN = 2  # first steps, without drafts
_RECENT, _OLD = 8, 512  # steps of a size that are kept; steps after which they no longer count
_PRIOR_SLOPE = 0.007  # growth of a step's time for each unit, where no draft was measured
_FIRST_SLOTS = 16  # first steps, half of them with slots
_COLD = 8  # of these, which are not counted
_SLOT_TRIAL = 64  # steps between trials with slots where these do not pay, or without
_RATE = 0.2  # weight of a new gain
_BUCKETS, _PRIOR, _KEEP = 12, 4.0, 0.995  # of probabilities: number, tokens, weight of the past
_LEAST_GAIN = 0.05  # of the mean speed: nothing is drafted for what errors of estimates hide
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
        self._last: tuple[frozenset[str], float] | None = None

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
        if not last[0].issuperset(step.names[:count]):
            return
        size, batch = sum(step.verified or ()), self._batch(count)
        batch.add_step(size, now - last[1])

    def finish(self, step: EngineStep, now: float) -> None:
        """Drafts are ready, and the engine's next step begins."""
        names = zip(step.names, step.kept, strict=False)
        self._last = frozenset(name for name, tokens in names if tokens), now

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
        if batch.searches <= _FIRST_SLOTS:
            return batch.searches % 2 == 1
        is_trial = batch.searches % _SLOT_TRIAL == 0
        return (batch.gains.get(True, 0.0) >= batch.gains.get(False, 0.0)) != is_trial

    def choose(
        self,
        probs: Sequence[npt.NDArray[np.float64]],
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
        batch = self._batch(count)
        if batch.num_plain < _FIRST_PLAIN:
            return [0] * len(probs)
        flat = np.concatenate([*(np.log1p(one.cumsum()) for one in probs), np.empty(0)])
        owners = np.repeat(np.arange(len(probs)), [len(one) for one in probs])
        flat[1:] -= np.where(owners[1:] == owners[:-1], flat[:-1], 0.0)  # what each token adds
        most = min(len(flat), max(2 * batch.largest, batch.unit, count))
        # Stable, so that a prefix precedes what extends it.
        order = np.argsort(-flat, kind="stable")[:most]
        expected = np.ones(most + 1)
        expected[1:] = np.exp(flat[order].cumsum() / count)
        times = batch.times.table
        rates = expected / (times[batch.units[: most + 1]] + own_seconds)
        size = int(rates.argmax())
        batch.add_gain(float(rates[size] * times[0]), with_slots=with_slots)
        gain = float(rates[size] / rates[0]) - 1.0
        if gain < _LEAST_GAIN:
            size = 0
        often = _PLAIN[0] * (1 + min(batch.num_plain, batch.num_drafts))
        is_plain = batch.drafted >= min(max(gain / _TRIAL_SHARE, _PLAIN[0]), often, _PLAIN[1])
        if is_plain:
            size = 0
        elif size == 0 and most:
            retry = min(batch.unit, most)
            loss = float(rates[0] / rates[retry]) - 1.0
            batch.is_retry = batch.undrafted > max(min(often, _RETRY), loss / _TRIAL_SHARE)
            size = retry if batch.is_retry else 0
        if not is_plain and not with_slots:
            share = own_seconds / float(times[0])
            batch.value += _RATE * ((gain if size else 0.0) - batch.value)
            if size == 0 and batch.value < _WORTH * share:
                batch.pause = min(int(share / _OWN_SHARE), _LONGEST_PAUSE)
        lengths = [0] * len(probs)
        if size:
            lengths = np.bincount(owners[order[:size]], minlength=len(probs)).tolist()
        batch.longest = max(_FORGET * batch.longest, *lengths, 1.0)
        return lengths

    def max_length(self, count: int) -> int:
        """Tokens of a draft to search at most, since longer ones are not verified lately.

        Args:
            count: requests of the batch.
        """
        return int(2 * self._batch(count).longest)

    def describe_costs(self) -> str:
        """Times of the steps of one request, as a file of `lattice-bpd build --costs`; "" at first.

        JSON: milliseconds by draft tokens.
        """
        if 1 not in self._batches:
            return ""
        batch = self._batches[1]
        times = {
            units // 2 * batch.unit: round(1e3 * seconds, 3)
            for units, seconds in sorted(batch.times.measured.items())
        }
        return json.dumps(times) if len(times) > 1 else ""

    def _batch(self, count: int) -> _Batch:
        """What is known of batches of about so many requests: exact to 7, within 25 % above."""
        grain = 1 << max(count.bit_length() - 3, 0)
        rounded = -(-count // grain) * grain
        if rounded not in self._batches:
            unit = -(-2 * rounded * self._num_tokens // SIZES[-1])
            near = min(self._batches, key=lambda number: abs(number - rounded), default=None)
            known = None if near is None else self._batches[near]
            self._batches[rounded] = _Batch(unit, self._num_tokens, known)
        return self._batches[rounded]


class Calibration:
    """Probabilities of draft tokens by what was accepted of those that were verified.

    A mixture that knows little of a text, such as its first words alone, is overconfident.
    """

    def __init__(self) -> None:
        centers = (np.arange(_BUCKETS) + 0.5) / _BUCKETS
        self._expected, self._accepted = _PRIOR * centers, _PRIOR * centers
        self._drafted: dict[str, npt.NDArray[np.float64]] = {}

    def observe(self, step: EngineStep) -> None:
        """Learn from the drafts of `note` that the engine verified in this step."""
        drafted, self._drafted = self._drafted, {}
        known = [
            (drafted[name], len(kept))
            for name, kept, count in zip(step.names, step.kept, step.verified or (), strict=False)
            if kept and name in drafted and len(drafted[name]) == count > 0
        ]
        if not known:
            return
        probs = np.concatenate([one for one, _ in known])
        accepted = np.concatenate([np.arange(1, len(one) + 1) < kept for one, kept in known])
        buckets = _buckets(probs)
        kept_share = np.where(np.bincount(buckets, minlength=_BUCKETS) > 0, _KEEP, 1.0)
        expected, found = (np.bincount(buckets, one, _BUCKETS) for one in (probs, accepted))
        self._expected = kept_share * self._expected + expected
        self._accepted = kept_share * self._accepted + found

    def note(self, drafted: dict[str, npt.NDArray[np.float64]]) -> None:
        """The probabilities of the drafts that the engine verifies next, by name of request."""
        self._drafted = drafted

    def adjust(self, probs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Probabilities (n,) of accepting draft tokens with their whole prefix."""
        ratios = self._accepted / self._expected
        adjusted: npt.NDArray[np.float64] = np.minimum(probs * ratios[_buckets(probs)], 1.0)
        return adjusted


def _buckets(probs: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    buckets: npt.NDArray[np.int64] = np.minimum(probs * _BUCKETS, _BUCKETS - 1).astype(np.int64)
    return buckets


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

    def choose(self, probs: Sequence[npt.NDArray[np.float64]], *_: Any, **__: Any) -> list[int]:
        """All of each draft."""
        return [len(one) for one in probs]

    def max_length(self, count: int) -> int:  # noqa: ARG002
        """As the engine verifies."""
        return sys.maxsize

    def describe_costs(self) -> str:
        """Nothing is measured."""
        return ""


class _StepTimes:
    """Seconds of steps by units of draft tokens.

    Of recent steps a low one counts, and none is slower than larger ones, since interruptions only
    add time. Sizes of fewer than three steps are on the line of a low slope of all recent drafts.

    Args:
        assumed: times of all units, of another number of requests; what drafts add is used until
            a step with drafts is measured.

    Attributes:
        measured: a low one of the recent times of each size.
    """

    def __init__(self, assumed: npt.NDArray[np.float64] | None = None) -> None:
        self._assumed, self._steps = assumed, 0
        self._recent: dict[int, deque[float]] = {}
        self._drafts: deque[tuple[int, float]] = deque(maxlen=2 * _RECENT)
        self._last: dict[int, int] = {}
        self.measured: dict[int, float] = {}
        self._table: npt.NDArray[np.float64] | None = np.ones(SIZES[-1] + 1)

    def add(self, units: int, seconds: float) -> None:
        """Add the time of a step."""
        self._steps += 1
        recent = self._recent.setdefault(units, deque(maxlen=_RECENT))
        recent.append(seconds)
        self.measured[units] = _low(recent)
        if units:
            self._drafts.append((units, seconds))
        self._last[units] = self._steps
        self.forget(_OLD)
        if 0 in self.measured:
            self._table = None

    def forget(self, steps: int) -> None:
        """Forget drafts of sizes that so many steps did not have."""
        for units in [n for n, last in self._last.items() if n and self._steps - last >= steps]:
            del self.measured[units], self._recent[units], self._last[units]
        if len(self._last) == (0 in self._last):
            self._drafts.clear()

    @property
    def table(self) -> npt.NDArray[np.float64]:
        """Times of 0 .. SIZES[-1] units; made where it is read, which paused steps do not."""
        if self._table is None:
            plain, sizes = self.measured[0], np.arange(SIZES[-1] + 1.0)
            known = sorted(n for n, recent in self._recent.items() if len(recent) > 2 or not n)
            slopes = [max(seconds - plain, 0.0) / units for units, seconds in self._drafts]
            slope = _low(slopes) if slopes else _PRIOR_SLOPE * plain
            table = np.interp(sizes, known, [self.measured[n] for n in known])
            table = table + slope * np.maximum(sizes - known[-1], 0.0)
            if self._assumed is not None and not slopes:
                table = plain - self._assumed[0] + self._assumed
            self._table = np.minimum.accumulate(table[::-1])[::-1]
        return self._table


def _low(times: Sequence[float] | deque[float]) -> float:
    return sorted(times)[(len(times) - 1) // 3]


class _Batch:
    """What is known of the steps of a number of requests.

    Args:
        unit: see below.
        num_tokens: draft tokens of a request, at most.
        known: of another number of requests, assumed until it is measured; None: nothing is known.

    Attributes:
        times: of steps by their draft tokens in `units`.
        unit: draft tokens of two units.
        units: for each number of draft tokens what `times` keep it as: few sizes, as in the
            library's own loop, since the first step of each is slow. 64 at most, and never between
            0 and 2: a step with drafts is slower than one without, however few they are.
        largest: draft tokens of the largest step so far; the next one has at most twice as many, or
            one for each request.
        longest: tokens of the longest draft, lately.
        undrafted: steps since the last draft.
        drafted: steps since the last one without drafts.
        num_plain: steps without drafts.
        num_drafts: steps with drafts.
        is_retry: whether the last draft is verified to measure again.
        pause: steps to come without a search.
        searches: steps with a search.
        value: the gain of lately searched drafts; 0 of those that are not verified.
        gains: expected tokens per second relative to no drafts, with slots (True) and without.
    """

    def __init__(self, unit: int, num_tokens: int, known: _Batch | None) -> None:
        self.unit, self.is_retry = unit, False
        self.units = 2 * ROUNDED_UP[-(-np.arange(unit * SIZES[-1] // 2 + 1) // unit)]
        self.undrafted = self.drafted = self.num_plain = self.num_drafts = self.pause = 0
        self.largest = self.searches = 0
        self.value = 0.0
        self.longest, self.gains = float(num_tokens), dict[bool, float]()
        self.times = _StepTimes()
        if known is not None:
            self.largest, self.longest = known.largest, known.longest
            self.searches, self.gains, self.value = known.searches, dict(known.gains), known.value
            own = np.arange(SIZES[-1] + 1) * unit / known.unit
            self.times = _StepTimes(np.interp(own, np.arange(SIZES[-1] + 1), known.times.table))

    def add_step(self, size: int, seconds: float) -> None:
        """Add the time of a step with so many draft tokens."""
        self.undrafted = 0 if size else self.undrafted + 1
        self.drafted = self.drafted + 1 if size else 0
        self.num_plain += size == 0
        self.num_drafts += size > 0
        self.largest = max(self.largest, size)
        if size and self.is_retry:
            self.times.forget(_RETRY)
        self.is_retry = False
        self.times.add(-(-size // self.unit) * 2, seconds)

    def add_gain(self, gain: float, *, with_slots: bool) -> None:
        """Add a step's gain to the moving average, but for the first steps, which are slower."""
        if 0 < self.searches <= _COLD:
            return
        before = self.gains.get(with_slots, gain)
        self.gains[with_slots] = before + _RATE * (gain - before)
