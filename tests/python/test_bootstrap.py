"""Bootstrap intervals and sign-flip tests, against exact values of small cases."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lattice_bpd.build.bootstrap import bootstrap_ratio
from lattice_bpd_kim2024.lab.paired import compare_paired


def test_an_interval_leaves_equal_shares_outside_on_each_side():
    tokens, calls = np.repeat([1, 3], 500), np.ones(1000)
    result = bootstrap_ratio(tokens, calls)
    # the mean of 1,000 tosses of a coin, and 1.96 of its standard deviations, 1 / sqrt(1000)
    assert (result.value, result.low, result.high) == pytest.approx((2.0, 1.938, 2.062), abs=4e-3)
    gain = bootstrap_ratio(tokens, calls, less=1.0)
    assert (gain.value, gain.low, gain.high) == (result.value - 1, result.low - 1, result.high - 1)


@pytest.mark.parametrize("samples", [9, 99, 2000])
def test_a_p_value_counts_the_observed_signs_among_the_samples(samples):
    # 60 texts, each faster: no random signs are as extreme, so only the observed ones count
    result = compare_paired(np.full(60, 10), np.full(60, 15), samples=samples)
    assert result.p_value == 1 / (samples + 1)
    same = compare_paired(np.full(60, 10), np.full(60, 10), samples=samples)
    assert same.p_value == 1.0
    slower = compare_paired(np.full(60, 15), np.full(60, 10), samples=samples)
    assert slower.p_value == result.p_value  # two-sided


def test_a_p_value_is_the_exact_one_on_few_texts():
    calls, before = [10, 12, 9, 11, 13, 8], [13, 14, 9, 12, 15, 12]
    result = compare_paired(calls, before, samples=20000)
    assert result.gain.value == pytest.approx(75 / 63 - 1)
    saved = np.subtract(before, calls)
    flips = np.array(list(itertools.product([-1, 1], repeat=6))) @ saved
    assert result.p_value == pytest.approx(np.mean(np.abs(flips) >= saved.sum()), abs=0.01)
    with pytest.raises(ValueError, match="one text or more"):
        bootstrap_ratio([], [])
