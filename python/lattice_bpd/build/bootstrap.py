"""Bootstrap intervals of ratios such as block efficiency, resampled by text.

Tokens of one text depend on each other, texts do not; so texts are resampled.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

SAMPLES = 2000
FEWEST_TEXTS = 5  # with fewer an interval says nothing


@dataclass(frozen=True)
class Interval:
    """A value of all texts with its bootstrap interval low..high."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        """The fields by name."""
        return asdict(self)


def bootstrap_ratio(
    numerators: npt.ArrayLike,
    denominators: npt.ArrayLike,
    *,
    less: float = 0.0,
    seed: int = 0,
) -> Interval:
    """A ratio of sums over N texts with its 95 % percentile interval (Efron 1979).

    Block efficiency is tokens by calls; a relative gain is the baseline's time by that of the
    same texts, less 1.

    Args:
        numerators: (N,) of each text.
        denominators: (N,) of each.
        less: subtracted from the ratio.
        seed: of the samples.

    Raises:
        ValueError: no texts, or arrays that do not match.
    """
    above, below = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
    if above.ndim != 1 or above.shape != below.shape or len(above) == 0:
        raise ValueError(
            f"bootstrap: arrays of shapes {above.shape} and {below.shape}; expected one number "
            "for each text in both, and one text or more"
        )
    count = len(above)
    weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), SAMPLES)
    ratios = (weights @ above) / (weights @ below) - less
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Interval(float(above.sum() / below.sum()) - less, float(low), float(high))
