"""What a step costs by the number of its draft tokens, on a machine whose pace changes."""

from __future__ import annotations

from lattice_bpd import _core


class StepCosts(_core.StepCosts):
    """Seconds of a step against its draft tokens, learned while decoding.

    A step's time is the pace of the machine, which changes, times a smooth function of the size,
    so that sizes learn from each other (cpp/lattice_bpd/decode/step_costs.h says how).

        costs.add(size, seconds, steps=1, looked_at=False)
            the typical time of so many steps; one that is looked at takes longer for it
        costs.add_mixed([(size, seconds, steps), ...])
            typical times of sizes that took turns, and so had the same pace
        costs.count(size)
            steps of exactly this size so far
        costs.seconds(sizes, drawn=False)
            expected ones of n sizes; if drawn, some that may be, so that what may be the best size
            is tried

    `seconds` raises ValueError before the first time.
    """

    def at(self, size: int) -> float:
        """Expected seconds of a step with so many draft tokens."""
        return self.seconds([size])[0]
