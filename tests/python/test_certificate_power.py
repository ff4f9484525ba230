"""Planted faults on tiny models: certificates catch those above the noise, and give no alarm."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MODELS = ("llama float32", "llama bfloat16", "mistral float32")  # mistral: a window of 8


@pytest.fixture(scope="module")
def powers() -> Any:
    """The benchmark, and its measurement of each model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        bench = importlib.import_module("certificate_power")

        @functools.cache
        def power(name: str) -> Any:
            return bench.Power(*bench.load(*name.split()), 24)

        yield bench, power


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_faults_above_the_noise_are_caught(powers, name):
    bench, power = powers
    outcomes = [power(name).measure(fault, check=bool(fault.settings)) for fault in bench.FAULTS]
    pairs = [pair for one in outcomes for pair in zip(one.sizes, one.caught, strict=True)]
    large = [is_caught for size, is_caught in pairs if size > 2.5]
    above = [is_caught for size, is_caught in pairs if size > 1.2]
    assert all(large)
    assert sum(above) >= 0.9 * len(above)
    kinds = {one.name for one in outcomes if any(one.caught)}
    assert len(kinds) >= 15
    assert ("window: its last token is missing" in kinds) == name.startswith("mistral")
    assert [one.name for one in outcomes if one.checked is not None] == ["processors are skipped"]
    assert outcomes[-4].checked
    for one in outcomes[-3:]:
        assert one.name.startswith("none")
        assert not any(one.caught)
