"""What a step costs by the number of its draft tokens, on a machine whose pace changes.

A processor is shared, warms up, slows down; texts grow. What was measured of one size a thousand
steps ago is not to be compared with what another size takes now. So the log of a step's time is
taken for the sum of two unknowns, the pace of the machine and the cost of the size at a pace of 1,
and both follow what is measured as far as they are uncertain (a Kalman filter, 1960, without the
correlations): a size that is new learns its cost, a size that is known tells the pace of all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from lattice_bpd.decode.cost_curve import interpolate, rising_points

_NOISE = 0.02  # variance of the log of one measured time
_DRIFT = 0.02  # by which the pace becomes less certain from one measured time to the next
_CHANGE = 1e-4  # by which the cost of a size does
_UNKNOWN = 4.0
_HICCUP = 0.5  # larger surprises count as one of this size


class StepCosts:
    """Seconds of a step against its draft tokens, learned while decoding.

    A size's first time, which may be that of compiling and allocating too, counts only until there
    is a second. See `CostCurve` for sizes between and beyond those measured.
    """

    def __init__(self) -> None:
        self._pace = 0.0
        self._doubt_of_pace = 0.0
        self._costs: dict[int, float] = {}  # logs, at a pace of 1
        self._doubts: dict[int, float] = {}
        self._uses: Counter[int] = Counter()

    def add(self, nodes: int, seconds: float, steps: int = 1) -> None:
        """The mean time of one or more steps with `nodes` draft tokens."""
        measured = math.log(max(seconds, 1e-9)) - self._pace
        is_known = self._uses[nodes] > 1
        self._uses[nodes] += steps
        if not is_known:
            self._doubts[nodes] = _UNKNOWN
            surprise = measured - self._costs.setdefault(nodes, measured)  # the second overrules
        else:
            surprise = min(max(measured - self._costs[nodes], -_HICCUP), _HICCUP)
        doubt = self._doubts[nodes]
        whole = doubt + self._doubt_of_pace + _NOISE / steps
        self._costs[nodes] += surprise * doubt / whole
        self._doubts[nodes] = doubt * (1.0 - doubt / whole) + _CHANGE
        self._pace += surprise * self._doubt_of_pace / whole
        self._doubt_of_pace *= 1.0 - self._doubt_of_pace / whole
        self._doubt_of_pace += _DRIFT

    def count(self, nodes: int) -> int:
        """How many steps of exactly this size were measured."""
        return self._uses[nodes]

    def at(self, nodes: int) -> float:
        """Expected seconds of a step with so many draft tokens; see `seconds`."""
        cost = self._costs.get(nodes)
        return self.seconds([nodes])[0] if cost is None else math.exp(self._pace + cost)

    def seconds(self, sizes: Sequence[int], *, hope: float = 0.0) -> list[float]:
        """Expected seconds of steps with so many draft tokens.

        Args:
            sizes: draft tokens of each.
            hope: standard errors by which sizes are taken for cheaper than they were found to be,
                so that none is left aside for one bad measurement.

        Raises:
            ValueError: nothing was measured yet.
        """
        if not self._costs:
            raise ValueError("StepCosts: no times yet; add(nodes, seconds) first")
        known = sorted(self._costs)
        points = rising_points(known, [
            math.exp(self._pace + self._costs[n] - hope * math.sqrt(self._doubts[n])) for n in known
        ])  # fmt: skip
        return [interpolate(*points, size) for size in sizes]
