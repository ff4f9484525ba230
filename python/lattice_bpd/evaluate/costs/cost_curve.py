"""What a call costs by the number of its draft tokens: a line through measured times."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_KEPT = 25  # latest times of a size, whose median counts
_FAR = 1 << 20  # more draft tokens than any call has


class CostCurve:
    """Seconds of a verifying call against its draft tokens.

    A size's first time, which may be that of compiling and allocating too, counts only until there
    is a second. No size costs more than a larger one; between measured sizes the curve is linear,
    and beyond the largest it goes on as steep as from the smallest to there. Strategy "auto", which
    decodes on a machine whose pace changes, has `lattice_bpd.decode.adaptive.step_costs` instead.
    """

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}
        self._uses: dict[int, int] = {}

    def add(self, nodes: int, seconds: float) -> None:
        """One more call with `nodes` draft tokens."""
        times = self._times.setdefault(nodes, deque(maxlen=_KEPT))
        self._uses[nodes] = self.count(nodes) + 1
        if self._uses[nodes] == 2:
            times.clear()
        times.append(seconds)

    def count(self, nodes: int) -> int:
        """How often exactly this size was measured."""
        return self._uses.get(nodes, 0)

    def seconds(self, nodes: Sequence[int]) -> npt.NDArray[np.float64]:
        """Expected seconds of a call with so many draft tokens.

        Args:
            nodes: (n,) sizes.

        Returns:
            (n,) float64.

        Raises:
            ValueError: nothing was measured yet.
        """
        if not self._times:
            raise ValueError("CostCurve: no times yet; add(nodes, seconds) first")
        sizes = sorted(self._times)
        medians = [np.median(self._times[size]) for size in sizes]
        rising = np.minimum.accumulate(medians[::-1])[::-1]
        if len(sizes) > 1:
            slope = (rising[-1] - rising[0]) / (sizes[-1] - sizes[0])
            rising = np.append(rising, rising[-1] + slope * (_FAR - sizes[-1]))
            sizes.append(_FAR)
        return np.asarray(np.interp(nodes, sizes, rising), np.float64)
