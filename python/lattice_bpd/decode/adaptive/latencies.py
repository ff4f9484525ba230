"""Estimated latency of a decoding step by its number of draft tokens."""

from __future__ import annotations

import math
from bisect import bisect_left

_RATE = 0.15  # weight of a new measurement in a size's moving average
_OFFSET_RATE = 0.3  # share of a deviation that is attributed to the machine's speed


class Latencies:
    """Exponential moving averages of log latencies, one per size.

    Changes of the machine's speed affect all sizes. They are kept as a common offset, so that
    one measured size updates the others.

    Attributes:
        counts: measurements of each size.
    """

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self._offset = 0.0
        self._relative: dict[int, float] = {}  # log latency of a size minus the offset

    def add(self, size: int, seconds: float) -> None:
        """Adds a measurement.

        Args:
            size: draft tokens of a step.
            seconds: its mean latency, above 0.
        """
        value = math.log(seconds)
        count = self.counts[size] = self.counts.get(size, 0) + 1
        if size not in self._relative:
            self._offset = self._offset if self._relative else value
            self._relative[size] = value - self._offset
            return
        deviation = value - self._offset - self._relative[size]
        shift = _OFFSET_RATE * deviation
        self._offset += shift
        self._relative[size] += max(_RATE, 1.0 / count) * (deviation - shift)

    def at(self, size: int) -> float:
        """Seconds of a step, for other sizes than measured along a line.

        Raises:
            ValueError: nothing was measured yet.
        """
        if not self._relative:
            raise ValueError("Latencies: no measurement yet; add one before asking for a latency")
        if size in self._relative:
            return math.exp(self._offset + self._relative[size])
        sizes = sorted(self._relative)
        seconds = [math.exp(self._offset + self._relative[one]) for one in sizes]
        if len(sizes) == 1:
            return seconds[0]
        right = min(max(bisect_left(sizes, size), 1), len(sizes) - 1)
        slope = (seconds[right] - seconds[right - 1]) / (sizes[right] - sizes[right - 1])
        return max(seconds[right - 1] + slope * (size - sizes[right - 1]), 0.5 * seconds[0])
