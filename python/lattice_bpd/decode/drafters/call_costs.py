"""Measured time of a decoding step by its number of draft tokens."""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

SIZES = (0, 2, 4, 8, 16, 32, 64)  # draft tokens at which times are kept; between them lines

# Each number of draft tokens between the kept sizes: 2.5 is halfway between SIZES[2] and SIZES[3].
_AT: list[float] = np.interp(range(SIZES[-1] + 1), SIZES, range(len(SIZES))).tolist()

_RATE = 0.03  # weight of a new measurement of a size
_SPEED_RATE = 0.1  # the same, of the machine's speed
_PRIOR_SLOPE = 0.014  # assumed growth of a call's time for each draft token ..
_PRIOR_COUNT = 2.0  # .. which counts for so many measurements of each size
_GREEDY_STEPS = (1, 2, 24)
_GREEDY_EVERY = 256  # later ones
_FIRST_TRIAL = 16  # later ones after twice as many steps each
_WORST = 4.0  # a measurement longer than this times the expected one is an interruption
_LONG = 2.0  # likewise: it counts as so much, unless the one before of that size was as long


class CallCosts:
    """Moving averages of the times of steps, at a few sizes, relative to the machine's speed.

    The speed, a common factor, follows every measurement, so that a slower machine or a longer text
    changes all sizes together.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._steps = 0
        self._measured = 0
        self._counts = [0.0] * len(SIZES)
        self._relative = [1.0 + _PRIOR_SLOPE * size for size in SIZES]  # seconds / speed
        self._speed = 1.0
        self._longest = [_LONG] * len(SIZES)  # that counts, as ratio

    def next_to_measure(self) -> int | None:
        """The size of the next step if it is to be measured; None if it may be any.

        Greedy steps are first, since all others are compared with them, and come again. Sizes that
        no step had are tried ever more rarely, so that a wrong assumption about them is noticed.
        """
        self._steps += 1
        if self._steps in _GREEDY_STEPS or self._steps % _GREEDY_EVERY == _GREEDY_EVERY - 1:
            return 0
        if self._steps >= _FIRST_TRIAL and self._steps & (self._steps - 1) == 0:
            return next((one for one, n in zip(SIZES, self._counts, strict=True) if n < 0.5), None)
        return None

    def add(self, size: int, seconds: float) -> None:
        """Add a measurement.

        Args:
            size: draft tokens of a step.
            seconds: its time, above 0.
        """
        with self.lock:
            self._measured += 1
            if self._measured == 1:  # the first call of a process is slow
                return
            at = _AT[min(size, SIZES[-1])]
            low = int(at)  # the kept size at or below, and the share of the next one
            shares = [(low, 1.0 - at + low), (low + 1, at - low)][: len(SIZES) - low]
            expected = sum(share * self._relative[one] for one, share in shares)
            if self._measured == 2:
                self._speed = seconds / expected
            ratio = seconds / (self._speed * expected)
            longest, self._longest[round(at)] = self._longest[round(at)], max(_LONG, ratio)
            ratio = min(ratio, longest)
            known = sum(s * (self._counts[one] + s) for one, s in shares) > _PRIOR_COUNT
            if ratio > _WORST and known:
                return
            if known:
                self._speed *= 1.0 + _SPEED_RATE * (min(ratio, 2.0) - 1.0)
            for one, share in shares:
                self._counts[one] += share
                rate = share * max(_RATE, 1.0 / (self._counts[one] + _PRIOR_COUNT))
                self._relative[one] *= 1.0 + rate * (ratio - 1.0)

    def times(self, max_size: int) -> npt.NDArray[np.float64]:
        """(max_size + 1,) float64, the expected seconds of steps of 0 .. max_size draft tokens."""
        ascending = self._speed * np.maximum.accumulate(self._relative)
        times: npt.NDArray[np.float64] = np.interp(np.arange(max_size + 1), SIZES, ascending)
        return times


class ModelCosts:
    """The costs of one model's steps by the number of sequences."""

    def __init__(self) -> None:
        self._of_batches: dict[int, CallCosts] = {}

    def of(self, batch: int) -> CallCosts:
        """Those of steps with so many sequences."""
        if batch not in self._of_batches:
            self._of_batches.setdefault(batch, CallCosts())
        return self._of_batches[batch]


_OF_MODELS: WeakKeyDictionary[Any, dict[bool, ModelCosts]] = WeakKeyDictionary()


def costs_of(model: Any, *, cpu_kernels: bool = True) -> ModelCosts:
    """The measured costs of a model with the core's kernels, or without; kept as long as it is."""
    both = _OF_MODELS.setdefault(model, {True: ModelCosts(), False: ModelCosts()})
    return both[bool(cpu_kernels)]
