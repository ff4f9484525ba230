"""Times of the target's calls, measured and from a file."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import copy

import numpy as np

from lattice_bpd import FormatError
from lattice_bpd.build.job import read_costs
from lattice_bpd.decode import generate
from lattice_bpd.decode.drafters.call_costs import SIZES, CallCosts, costs_of
from target_models import COUNT, PROMPTS, build_target


def test_times_become_those_of_the_measured_calls():
    costs = CallCosts()
    costs.add(0, 9.0)  # the first call of a process is slow
    for size in SIZES * 200:
        costs.add(size, 0.02 + 0.001 * size)
    np.testing.assert_allclose(costs.times(64), 0.02 + 0.001 * np.arange(65), rtol=0.02)


def test_interruptions_do_not_end_drafts():
    """A tenth of the calls takes 3 to 10 times as long, such as the first one with 16 tokens."""
    costs, rng = CallCosts(), np.random.default_rng(3)
    costs.add(0, 9.0)
    for _ in range(4):
        costs.add(0, 0.02)
    costs.add(16, 0.2)
    assert costs.times(16)[16] < 1.8 * costs.times(16)[0]
    for number in range(400):
        size = SIZES[number % len(SIZES)]
        slow = rng.uniform(3, 10) if rng.random() < 0.1 else 1.0
        costs.add(size, slow * (0.02 + 0.0004 * size))
    relative = costs.times(64) / costs.times(64)[0]
    np.testing.assert_allclose(relative, 1 + 0.02 * np.arange(65), rtol=0.3)


def test_long_calls_that_come_again_are_no_interruptions():
    costs = CallCosts()
    costs.add(0, 9.0)
    for _ in range(4):
        costs.add(0, 0.02)
    for _ in range(4):
        costs.add(16, 0.2)
    assert costs.times(16)[16] > 3 * costs.times(16)[0]


def test_decoding_measures_its_calls():
    model = copy.deepcopy(build_target("llama"))
    generate(model, PROMPTS[0], max_new_tokens=COUNT)
    assert sum(costs_of(model).of(1)._counts) >= 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"0": 1.0}', "1 sizes; expected two or more"),
        ('{"0": 1.0, "8": 0}', "8 draft tokens in 0.0 ms"),
        ('{"0": 1.0, "many": 2}', "not a cost curve"),
        ("[1, 2]", "not a cost curve"),
        ('{"0": 1.0, "-8": 2}', "-8 draft tokens"),
    ],
)
def test_files_that_are_no_cost_curves_are_refused(tmp_path, text, message):
    (tmp_path / "cost.json").write_text(text)
    with pytest.raises(FormatError, match=message):
        read_costs(tmp_path / "cost.json")
