"""Measured time of a decoding step by its number of draft tokens."""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

SIZES = (0, 1, 2, 4, 8, 16, 32, 64)  # draft tokens at which times are kept; between them lines

_RATE = 0.1  # weight of a new measurement
_SPEED_RATE = 0.05  # the same, of the machine's speed
_FIRST = 3  # measurements of a size of which the shortest counts, since first calls are slow
_PRIOR_SLOPE = 0.012  # assumed growth of a call's time for each draft token, until measured
_GREEDY_STEPS = (1, 5, 20)
_FIRST_TRIAL = 16  # later ones after twice as many steps each
_WORST = 4.0  # a measurement longer than this times the expected one is an interruption


class CallCosts:
    """Moving averages of the times of steps, at a few sizes, relative to the machine's speed.

    The speed, a common factor, follows every measurement, so that a slower machine or a longer text
    changes all sizes together.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._steps = 0
        self._counts = np.zeros(len(SIZES))
        self._relative = np.full(len(SIZES), np.nan)  # seconds / speed
        self._speed = 1.0

    def __reduce__(self) -> tuple[Any, ...]:
        """A new one: times belong to a process and its machine."""
        return type(self), ()

    def next_to_measure(self) -> int | None:
        """The size of the next step if it is to be measured; None if it may be any.

        Greedy steps are measured first and soon again, since a first call is slow. Sizes that no
        step had are tried ever more rarely, so that a wrong assumption about them is noticed.
        """
        self._steps += 1
        if self._steps in _GREEDY_STEPS:
            return 0
        if self._steps >= _FIRST_TRIAL and self._steps & (self._steps - 1) == 0:
            untried = np.flatnonzero(self._counts == 0)
            if untried.size:
                return SIZES[untried[0]]
        return None

    def add(self, size: int, seconds: float) -> None:
        """Add a measurement.

        Args:
            size: draft tokens of a step.
            seconds: its time, above 0.
        """
        with self.lock:
            index = _nearest(size)
            if not self._counts.any():
                self._speed = seconds
            times = self._relative_times()
            ratio = seconds / (self._speed * float(np.interp(size, SIZES, times)))
            if self._counts[index] >= _FIRST and ratio > _WORST:
                return
            self._counts[index] += 1
            # A size between two kept ones changes the nearest by the ratio to what was expected.
            if self._counts[index] == 1:
                self._relative[index] = times[index] * ratio
            elif self._counts[index] <= _FIRST:
                self._relative[index] = min(self._relative[index], times[index] * ratio)
            else:
                self._relative[index] *= 1.0 + _RATE * (ratio - 1.0)
                self._speed *= 1.0 + _SPEED_RATE * (min(ratio, 2.0) - 1.0)

    def times(self, max_size: int) -> npt.NDArray[np.float64]:
        """(max_size + 1,) float64, the expected seconds of steps of 0 .. max_size draft tokens."""
        relative = self._relative_times()
        sizes = np.arange(max_size + 1)
        beyond = np.maximum(sizes - SIZES[-1], 0) * (relative[-1] - relative[-2])
        steps = np.interp(sizes, SIZES, relative) + beyond / (SIZES[-1] - SIZES[-2])
        times: npt.NDArray[np.float64] = self._speed * steps
        return times

    def _relative_times(self) -> npt.NDArray[np.float64]:
        """Times at all kept sizes, not decreasing; those not measured by their neighbors."""
        known = np.flatnonzero(self._counts)
        sizes = np.array(SIZES, np.float64)
        if known.size == 0:
            return 1.0 + _PRIOR_SLOPE * sizes
        first, last = known[0], known[-1]
        times = np.interp(sizes, sizes[known], self._relative[known])
        base = self._relative[first] / (1.0 + _PRIOR_SLOPE * sizes[first])
        times[:first] = base * (1.0 + _PRIOR_SLOPE * sizes[:first])
        times[last + 1 :] += base * _PRIOR_SLOPE * (sizes[last + 1 :] - sizes[last])
        return np.maximum.accumulate(times)


def _nearest(size: int) -> int:
    return int(np.argmin(np.abs(np.array(SIZES) - size)))


class ModelCosts:
    """The costs of one model's steps by the number of sequences."""

    def __init__(self) -> None:
        self._of_batches: dict[int, CallCosts] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """A new one."""
        return type(self), ()

    def of(self, batch: int) -> CallCosts:
        """Those of steps with so many sequences."""
        return self._of_batches.setdefault(batch, CallCosts())


_OF_MODELS: WeakKeyDictionary[Any, ModelCosts] = WeakKeyDictionary()


def costs_of(model: Any) -> ModelCosts:
    """The measured costs of a model; kept as long as the model is."""
    return _OF_MODELS.setdefault(model, ModelCosts())
