"""Bootstrap intervals and paired tests of block efficiency, resampled by text.

Tokens of one text depend on each other, texts do not; so texts are resampled.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

SAMPLES = 2000
LEVEL = 0.95
FEWEST_TEXTS = 5  # with fewer an interval says nothing
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A value of all texts with its bootstrap interval low..high."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        """The fields by name."""
        return asdict(self)


@dataclass(frozen=True)
class PairedTest:
    """One strategy against another on the same texts.

    Attributes:
        gain: relative gain in block efficiency, such as 0.21, with its interval.
        p_value: two-sided, of the hypothesis that the calls of each text are exchangeable.
    """

    gain: Interval
    p_value: float


def bootstrap_block_efficiency(
    tokens: npt.ArrayLike,
    calls: npt.ArrayLike,
    *,
    samples: int = SAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> Interval:
    """Block efficiency of N texts with its percentile interval (Efron 1979).

    Args:
        tokens: (N,) decoded tokens of each text.
        calls: (N,) target calls of each.
        samples: number of bootstrap samples.
        level: of the interval.
        seed: of the samples.

    Raises:
        ValueError: no texts, or arrays that do not match.
    """
    tokens, calls = _checked(tokens, calls)
    weights = _resample(len(tokens), samples, seed)
    ratios = (weights @ tokens) / (weights @ calls)
    return _interval(float(tokens.sum() / calls.sum()), ratios, level)


def compare_paired(
    tokens: npt.ArrayLike,
    calls: npt.ArrayLike,
    baseline_calls: npt.ArrayLike,
    *,
    samples: int = SAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> PairedTest:
    """Gain in block efficiency over a baseline that decoded the same texts.

    Args:
        tokens: (N,) decoded tokens of each text, the same for both.
        calls: (N,) target calls of the strategy.
        baseline_calls: (N,) of the baseline.
        samples: of the bootstrap and of the sign-flip test (Fisher 1935).
        level: of the interval.
        seed: of the samples.

    Raises:
        ValueError: no texts, or arrays that do not match.
    """
    tokens, calls = _checked(tokens, calls)
    tokens, baseline = _checked(tokens, baseline_calls)
    weights = _resample(len(tokens), samples, seed)
    ratios = (weights @ baseline) / (weights @ calls) - 1.0
    gain = _interval(float(baseline.sum() / calls.sum() - 1.0), ratios, level)
    saved = baseline - calls
    signs = np.random.default_rng([seed, 1]).choice([-1.0, 1.0], (samples, len(saved)))
    extreme = np.abs(signs @ saved) >= abs(saved.sum()) - 1e-9
    return PairedTest(gain, float((1 + extreme.sum()) / (1 + samples)))


def _checked(tokens: npt.ArrayLike, calls: npt.ArrayLike) -> tuple[Array, Array]:
    first, second = np.asarray(tokens, np.float64), np.asarray(calls, np.float64)
    if first.ndim != 1 or first.shape != second.shape or len(first) == 0:
        raise ValueError(
            f"bootstrap: arrays of shapes {first.shape} and {second.shape}; expected one number "
            "for each text in both, and one text or more"
        )
    return first, second


def _resample(count: int, samples: int, seed: int) -> Array:
    """(samples, count) how often each text is in each sample."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(count, np.full(count, 1.0 / count), samples).astype(np.float64)


def _interval(value: float, sampled: Array, level: float) -> Interval:
    low, high = np.quantile(sampled, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high))
