"""What a step costs by the number of its draft tokens, learned while decoding."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

_KEPT = 25  # latest times of a size: their median follows growing contexts and forgets hiccups
_FAR = 1 << 20  # more draft tokens than any step has


class CostCurve:
    """Seconds of a verifying step against its draft tokens.

    Times are added as they are measured. A size's first time, which may be that of compiling and
    allocating too, counts only until there is a second. No size costs more than a larger one;
    between measured sizes the curve is linear, and beyond the largest it goes on as steep as from
    the smallest to there.
    """

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}
        self._uses: Counter[int] = Counter()
        self._medians: dict[int, float] = {}
        self._points: tuple[list[int], list[float]] = ([], [])

    def add(self, nodes: int, seconds: float) -> None:
        """One more step with `nodes` draft tokens."""
        times = self._times.setdefault(nodes, deque(maxlen=_KEPT))
        self._uses[nodes] += 1
        if self._uses[nodes] == 2:
            times.clear()
        times.append(seconds)
        self._medians[nodes] = _median(times)
        sizes = sorted(self._medians)
        self._points = _rising_points(sizes, [self._medians[size] for size in sizes])

    def count(self, nodes: int) -> int:
        """How often exactly this size was measured."""
        return self._uses[nodes]

    def seconds(self, nodes: Sequence[int]) -> npt.NDArray[np.float64]:
        """Expected seconds of a step with so many draft tokens.

        Args:
            nodes: (n,) sizes.

        Returns:
            (n,) float64.

        Raises:
            ValueError: nothing was measured yet.
        """
        return np.array([self.at(size) for size in nodes])

    def at(self, nodes: int) -> float:
        """Expected seconds of a step with so many draft tokens; see `seconds`."""
        if not self._points[0]:
            raise ValueError("CostCurve: no times yet; add(nodes, seconds) first")
        return _interpolate(*self._points, nodes)


def _rising_points(sizes: list[int], times: list[float]) -> tuple[list[int], list[float]]:
    """Measured times so that no size costs more than a larger one, and a point far out.

    Args:
        sizes: n, rising.
        times: of each.

    Returns:
        Sizes and times of the points; see `_interpolate`.
    """
    rising = list(accumulate(reversed(times), min))[::-1]
    if len(sizes) < 2:
        return sizes, rising
    slope = (rising[-1] - rising[0]) / (sizes[-1] - sizes[0])
    return [*sizes, _FAR], [*rising, rising[-1] + slope * (_FAR - sizes[-1])]


def _interpolate(sizes: list[int], times: list[float], size: int) -> float:
    """The time of a size on the line through points, one or more, by rising size."""
    above = bisect_right(sizes, size)
    if above in (0, len(sizes)):
        return times[min(above, len(sizes) - 1)]
    share = (size - sizes[above - 1]) / (sizes[above] - sizes[above - 1])
    return times[above - 1] + share * (times[above] - times[above - 1])


def _median(times: Iterable[float]) -> float:
    """Of a few numbers; the mean of both in the middle of an even count."""
    ranked = sorted(times)
    middle = len(ranked) // 2
    return ranked[middle] if len(ranked) % 2 else 0.5 * (ranked[middle - 1] + ranked[middle])
