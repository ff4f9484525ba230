"""Paired comparisons of two strategies on the same texts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lattice_bpd.build.bootstrap import SAMPLES, Interval, bootstrap_ratio


@dataclass(frozen=True)
class PairedTest:
    """One strategy against another on the same texts.

    Attributes:
        gain: relative gain in block efficiency, such as 0.21, with its interval.
        p_value: two-sided, of the hypothesis that the calls of each text are exchangeable.
    """

    gain: Interval
    p_value: float


def compare_paired(
    calls: npt.ArrayLike,
    baseline_calls: npt.ArrayLike,
    *,
    samples: int = SAMPLES,
    seed: int = 0,
) -> PairedTest:
    """Gain in block efficiency over a baseline that decoded the same texts.

    Args:
        calls: (N,) target calls of the strategy, or their time.
        baseline_calls: (N,) of the baseline.
        samples: of the sign-flip test (Fisher 1935).
        seed: of the samples.

    Raises:
        ValueError: no texts, or arrays that do not match.
    """
    gain = bootstrap_ratio(baseline_calls, calls, less=1.0, seed=seed)
    saved = np.asarray(baseline_calls, np.float64) - np.asarray(calls, np.float64)
    signs = np.random.default_rng([seed, 1]).choice([-1.0, 1.0], (samples, len(saved)))
    extreme = np.abs(signs @ saved) >= abs(saved.sum()) - 1e-9
    return PairedTest(gain, float((1 + extreme.sum()) / (1 + samples)))
