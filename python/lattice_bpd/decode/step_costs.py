"""What a step costs by the number of its draft tokens, on a machine whose pace changes.

A processor is shared, warms up, slows down; texts grow. What was measured of one size a thousand
steps ago is not to be compared with what another size takes now. And one step's time is off by a
tenth and more, so that sizes which are near each other must learn from each other. So the log of a
step's time is taken for the sum of two unknowns, the pace of the machine and a smooth function of
the size, and both follow what is measured as far as they are uncertain: a Gaussian process over
sizes (Rasmussen and Williams 2006, chapter 2), updated as a Kalman filter (Kalman 1960).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lattice_bpd.decode.cost_curve import interpolate, rising_points

FloatArray = npt.NDArray[np.float64]

_NOISE = 0.02  # variance of the log of one measured time
_DRIFT = 0.02  # by which the pace becomes less certain from one measured time to the next
_UNKNOWN = 25.0  # variance of the pace before anything was measured
_HICCUP = 0.5  # larger surprises count as one of this size
_CURVE = 1.5  # variance of the smooth function of the size, ..
_SMOOTH = 2.2  # .. in which sizes matter to each other that differ by so many doublings, ..
_OWN = 4e-4  # .. and of what each size has of its own beside it
_DARE = 0.3  # standard errors for one of the normal distribution, see StepCosts.seconds
_CHANGE = 1e-3  # share of those variances that comes back from one measured time to the next


class StepCosts:
    """Seconds of a step against its draft tokens, learned while decoding.

    A size's first time, which may be that of compiling and allocating too, does not count once
    there is a second one. See `CostCurve` for sizes between and beyond those measured.
    """

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._uses: Counter[int] = Counter()
        # Of the pace and then of the sizes' logs at a pace of 1: mean and covariance, and what the
        # covariance was before anything was measured.
        self._mean: FloatArray = np.zeros(1)
        self._doubt: FloatArray = np.full((1, 1), _UNKNOWN)
        self._before: FloatArray = np.full((1, 1), _UNKNOWN)

    def add(self, nodes: int, seconds: float, steps: int = 1) -> None:
        """The mean time of one or more steps with `nodes` draft tokens."""
        first = self._uses[nodes] == 0
        self._uses[nodes] += steps
        measured = math.log(max(seconds, 1e-9))
        if len(self._uses) == 1 and self._uses[nodes] - steps < 2:  # the first, or the second
            self._forget(nodes)
        elif first:
            return
        place = self._place(nodes)
        if place == 0:
            place = self._append(nodes)
        change = _CHANGE * self._before
        change[0, 0] = _DRIFT if len(self._sizes) > 1 or not first else 0.0
        self._doubt += change
        surprise = measured - self._mean[0] - self._mean[place]
        shared = self._doubt[:, 0] + self._doubt[:, place]
        whole = float(shared[0] + shared[place])
        if whole < 1.0:  # not of the very first time, which tells the pace
            surprise = min(max(surprise, -_HICCUP), _HICCUP)
        whole += _NOISE / steps
        self._mean += shared * (surprise / whole)
        self._doubt -= np.outer(shared, shared / whole)

    def count(self, nodes: int) -> int:
        """How many steps of exactly this size were measured."""
        return self._uses[nodes]

    def at(self, nodes: int) -> float:
        """Expected seconds of a step with so many draft tokens; see `seconds`."""
        place = self._place(nodes)
        if place == 0:
            return self.seconds([nodes])[0]
        return math.exp(self._mean[0] + self._mean[place])

    def seconds(
        self, sizes: Sequence[int], random: np.random.Generator | None = None
    ) -> list[float]:
        """Expected seconds of steps with so many draft tokens.

        Args:
            sizes: draft tokens of each.
            random: draws costs that may be, closer to the expected ones than they are uncertain, so
                that a size which may be the best is tried, and none is for long that is not
                (Thompson sampling, 1933).

        Raises:
            ValueError: nothing was measured yet.
        """
        if not self._sizes:
            raise ValueError("StepCosts: no times yet; add(nodes, seconds) first")
        logs = self._mean[0] + self._mean[1:]
        if random is not None:
            doubt = self._doubt[1:, 1:]
            root = np.linalg.cholesky(doubt + 1e-9 * np.eye(len(doubt)))
            logs = logs + _DARE * (root @ random.standard_normal(len(doubt)))
        known = sorted(zip(self._sizes, np.exp(logs).tolist(), strict=True))
        points = rising_points([size for size, _ in known], [time for _, time in known])
        return [interpolate(*points, size) for size in sizes]

    def _place(self, nodes: int) -> int:
        """Of a size among the unknowns; 0 for none."""
        return self._sizes.index(nodes) + 1 if nodes in self._sizes else 0

    def _forget(self, nodes: int) -> None:
        """Begin with this size."""
        self._sizes = []
        self._mean, self._doubt = np.zeros(1), np.full((1, 1), _UNKNOWN)
        self._before = self._doubt.copy()
        self._append(nodes)

    def _append(self, nodes: int) -> int:
        """One more size, about which is known what the others tell."""
        prior = _prior([*self._sizes, nodes])
        old, to_old, own = prior[:-1, :-1], prior[-1, :-1], prior[-1, -1]
        weights = np.zeros(len(self._mean))
        weights[1:] = np.linalg.solve(old, to_old)
        shared = self._doubt @ weights
        doubt = own - weights[1:] @ to_old + weights @ shared
        self._mean = np.append(self._mean, weights @ self._mean)
        self._doubt = np.block([[self._doubt, shared[:, None]], [shared[None], doubt]])
        self._sizes.append(nodes)
        self._before = np.zeros_like(self._doubt)
        self._before[1:, 1:] = prior
        return len(self._sizes)


def _prior(sizes: Sequence[int]) -> FloatArray:
    """Covariance of the logs of sizes' costs before anything was measured."""
    doublings = np.log2(np.array(sizes) + 1.0)
    apart = (doublings[:, None] - doublings[None]) / _SMOOTH
    prior: FloatArray = _CURVE * np.exp(-0.5 * apart**2) + np.diag(np.full(len(sizes), _OWN))
    return prior
