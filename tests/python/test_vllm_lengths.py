"""The vLLM plug-in's lengths of drafts by measured steps, on a clock of known costs."""

from __future__ import annotations

import itertools
import re
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from lattice_bpd.build.job import read_costs
from lattice_bpd.decode.drafters.mixture import ROUNDED_UP
from lattice_bpd_vllm.batch import EngineStep
from lattice_bpd_vllm.draft_lengths import Calibration, DraftLengths


def verify(names: list[str], kept: list[int], verified: list[int] | None) -> EngineStep:
    empty = np.zeros(0)
    return EngineStep(
        [[1] * count for count in kept], empty, empty, empty, [], 0, 0, torch.empty(0), verified,
        names, names,
    )  # fmt: skip


def searched(probs: list[float], costs: Any) -> list[float]:
    """A chain as the core's search ends it."""
    found, expected, ratio = [], 1.0, 1.0
    if costs is None:
        return probs
    for size, prob in enumerate(probs):
        ends = range(size + 1, len(probs) + 1)
        if all(expected + (end - size) * prob <= ratio * costs[end] for end in ends):
            break
        found.append(prob)
        expected += prob
        ratio = max(ratio, expected / costs[size + 1])
    return found


class Clock:
    """An engine whose steps take `base + slope * draft tokens` seconds."""

    def __init__(
        self, base: float, slope: float, count: int, num_tokens: int = 4, *,
        has_slots: bool = False, may_pause: bool = True,
    ) -> None:  # fmt: skip
        self.lengths = DraftLengths(num_tokens, has_slots=has_slots, may_pause=may_pause)
        self.base, self.slope, self.count = base, slope, count
        self.now, self.sizes, self.sums = 0.0, [0] * count, []  # type: ignore[var-annotated]

    def run(self, steps: int, probs: Any, own: float = 0.0, slots: Any = None) -> int:
        """Searches among the steps; `slots` is told whether each was with heads."""
        names, searches = [str(i) for i in range(self.count)], 0
        for _ in range(steps):
            step = verify(names, [1] * self.count, self.sizes if any(self.sizes) else None)
            self.lengths.observe(step, self.now)
            self.sizes = [0] * self.count
            if not self.lengths.is_paused(self.count):
                searches += 1
                with_slots = self.lengths.reads_slots(self.count)
                spent = own if slots is None else slots(with_slots)
                self.now += spent
                most, costs = self.lengths.limits(self.count, max(map(len, probs)))
                found = [searched(one[:most], costs) for one in probs]
                self.sizes = self.lengths.choose(found, self.count, spent, with_slots=with_slots)
            self.sums.append(sum(self.sizes))
            self.lengths.finish(step, self.now)
            self.now += self.base + self.slope * self.sums[-1]
        return searches


def best_sums(probs: list[list[float]], base: float, slope: float) -> set[int]:
    """Numbers of tokens within 3 % of the best mean speed of requests, of all choices of lengths.

    The mean is geometric, so that one request's drafts pay for the time that they cost the others.
    """
    rates: dict[int, float] = {}
    for lengths in itertools.product(*(range(len(one) + 1) for one in probs)):
        rate = statistics.geometric_mean(
            (1.0 + sum(one[:n])) / (base + slope * sum(lengths))
            for one, n in zip(probs, lengths, strict=True)
        )
        rates[sum(lengths)] = max(rate, rates.get(sum(lengths), 0.0))
    return {size for size, rate in rates.items() if rate > 0.97 * max(rates.values())}


EVEN, UNEVEN = [[0.9, 0.8, 0.4], [0.5, 0.2, 0.1]], [[0.02], [0.02]]


@pytest.mark.parametrize(
    ("others", "slope"),
    [(EVEN, 0.0), (EVEN, 0.1), (EVEN, 0.3), (EVEN, 0.6), (EVEN, 2.0), (UNEVEN, 0.5)],
)
def test_drafts_are_as_long_as_pays(others: list[list[float]], slope: float) -> None:
    """Also where one request alone has a long draft, which costs the others time."""
    probs = [*others, [0.95, 0.9, 0.85]]
    clock = Clock(1.0, slope / 3, 3, 3)
    clock.run(600, probs)
    assert int(np.median(clock.sums[-100:])) in best_sums(probs, 1.0, slope / 3)
    # the tokens are those of greatest probability
    if clock.sizes and others is EVEN and slope == 0.1:
        assert clock.sizes[1] <= clock.sizes[0] <= clock.sizes[2]


@pytest.mark.parametrize(("slope", "first"), [(0.03, 3.0), (0.1, 3.0), (0.1, 1.0)])
def test_slow_first_steps_do_not_make_drafts_cheap(slope: float, first: float) -> None:
    """Another process takes the processor while steps without drafts are measured."""
    probs = [[0.5, 0.3, 0.2, 0.1]] * 2 + [[0.1, 0.05]] * 2
    clock = Clock(first, slope, 4, 8)
    clock.run(3, probs)
    clock.base, clock.sums = 1.0, []
    clock.run(60, probs)
    best = best_sums(probs, 1.0, slope)
    assert sum(size in best for size in clock.sums) >= 44


def test_one_slow_step_with_drafts_does_not_end_drafting() -> None:
    clock = Clock(1.0, 2.0, 1)
    clock.run(2, [[0.9, 0.8, 0.7, 0.6]])  # one without drafts, one of three times that time
    assert clock.sums == [0, 1]
    clock.slope = 0.05
    clock.run(60, [[0.9, 0.8, 0.7, 0.6]])
    assert np.mean(clock.sums[-30:]) > 3.0


def test_steps_without_drafts_are_measured_while_drafts_pay() -> None:
    """A machine becomes faster, so that drafts no longer pay."""
    probs = [[0.4, 0.3, 0.2, 0.1]] * 3
    clock = Clock(4.0, 0.2, 3)
    clock.run(300, probs)
    assert clock.sums[-1] > 0
    clock.base, clock.sums = 1.0, []
    clock.run(300, probs)
    assert best_sums(probs, 1.0, 0.2) == {0}
    assert sum(size == 0 for size in clock.sums[-60:]) > 50


def test_another_number_of_requests_is_soon_known() -> None:
    """As a request ends, few steps tell what longer drafts cost."""
    probs = [[0.4, 0.3, 0.2, 0.1]] * 4
    clock = Clock(1.0, 0.1, 4)
    clock.run(600, probs)
    clock.count, clock.sizes, clock.sums = 3, [0] * 3, []
    clock.run(30, probs[:3])
    best = best_sums(probs[:3], 1.0, 0.1)
    assert sum(size in best for size in clock.sums) >= 26


@pytest.mark.parametrize("slope", [0.1, 0.5])
def test_where_nothing_pays_time_is_that_of_plain_decoding(slope: float) -> None:
    probs = [[0.5, 0.3, 0.2, 0.1]] * 8
    clock = Clock(1.0, slope, 8)
    clock.run(2000, probs, own=0.02)
    assert clock.now / 2000 < 1.02


@pytest.mark.parametrize(("prob", "drafted"), [(0.13, 0), (0.2, 1)])
def test_a_gain_within_the_errors_of_estimates_is_none(prob: float, drafted: int) -> None:
    clock = Clock(1.0, 0.1, 1, 1)
    clock.run(600, [[prob]])  # 1.03 and 1.09 times as many tokens per second with a draft
    assert int(np.median(clock.sums[-100:])) == drafted


def test_probabilities_are_those_of_what_was_accepted(rng: np.random.Generator) -> None:
    """A mixture that is right about the first token, and overconfident after it."""
    calibration, names = Calibration(), ["a", "b", "c"]
    said, real = [0.9, 0.7, 0.5, 0.3], np.array([0.9, 0.4, 0.1, 0.05])
    np.testing.assert_allclose(calibration.adjust(said), said)  # nothing is known
    for _ in range(300):
        calibration.note(dict.fromkeys(names, said))
        kept = (rng.random(len(names))[:, None] < real).sum(axis=1) + 1
        calibration.observe(verify(names, kept.tolist(), [len(said)] * len(names)))
    np.testing.assert_allclose(calibration.adjust(said), real, atol=0.08)
    before = calibration.adjust(said)
    for drafted, verified in ((["a"], [2]), (["x"], [4]), (["a"], [0])):  # of another step
        calibration.note({"a": said})
        calibration.observe(verify(drafted, [1], verified))
    calibration.observe(verify(["a"], [1], [4]))  # nothing was drafted
    np.testing.assert_array_equal(calibration.adjust(said), before)


def test_no_longer_drafts_are_searched_than_twice_those_verified() -> None:
    clock = Clock(1.0, 0.01, 4, 8)
    assert clock.lengths.limits(4, 99)[0] == 16
    clock.run(200, [[0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55]] * 4)
    assert clock.lengths.limits(4, 99)[0] >= 16
    clock.slope = 1.0
    clock.run(1000, [[0.3, 0.1, 0.05, 0.02, 0.01, 0.01, 0.01, 0.01]] * 4)
    assert clock.lengths.limits(4, 99)[0] <= 4


@pytest.mark.parametrize("slope", [0.0, 0.003, 0.02, 0.1])
def test_searches_end_at_tokens_that_cannot_pay(slope: float) -> None:
    """A token costs each of 4 requests `slope` of a step; half of that is a safe estimate."""
    clock = Clock(1.0, slope, 4, 8)
    clock.run(100, [[0.9, 0.8, 0.7, 0.6]] * 4)
    costs = np.diff(clock.lengths.limits(4, 8)[1])
    assert (costs <= 2.0 * slope + 1e-6).all()
    assert (costs >= slope).all()
    clock.slope = 9.0
    clock.run(50, [[0.2]] * 4)
    assert clock.lengths.limits(4, 8)[1] is None  # nothing pays: trials draft what there is


def test_sums_of_draft_tokens_are_those_of_the_own_loop() -> None:
    clock = Clock(1.0, 0.002, 8, 8)
    rng = np.random.default_rng(0)
    for _ in range(300):
        clock.run(1, np.sort(rng.uniform(0.1, 1.0, (8, 8)))[:, ::-1].tolist())
    assert set(clock.sums) <= {0, *ROUNDED_UP.tolist()}


def test_step_times_are_a_file_of_build(tmp_path: Path) -> None:
    """Of the steps of one request, milliseconds by draft tokens; only what was measured.

    The command of docs/serve.md takes it out of a log.
    """
    clock = Clock(1.0, 0.02, 1)
    assert clock.lengths.describe_costs() == ""
    clock.run(300, [[0.9, 0.8, 0.75, 0.7]])
    page = Path(__file__).resolve().parents[2] / "docs" / "serve.md"
    (pattern,) = re.findall(r"grep -o '(.*)' server.log", page.read_text(encoding="utf-8"))
    (costs_of_log,) = re.findall(pattern, f"by draft tokens: {clock.lengths.describe_costs()}")
    (tmp_path / "costs.json").write_text(costs_of_log)
    costs = read_costs(tmp_path / "costs.json")
    assert set(costs) <= {0, 1, 2, 4}
    assert {0, 4} <= set(costs)
    for size, milliseconds in costs.items():
        assert milliseconds == pytest.approx(1000.0 + 20.0 * size, rel=0.02)


def test_a_search_that_drafts_nothing_is_followed_by_a_pause() -> None:
    clock = Clock(1.0, 1.0, 1)
    clock.run(200, [[0.1]])
    assert clock.run(400, [[0.1]], own=0.1) < 60  # each of them is 10 % of a step
    quick = Clock(1.0, 1.0, 1)
    assert quick.run(50, [[0.1]], own=0.001) == 50  # less than half a percent
    never = Clock(1.0, 1.0, 1, has_slots=True, may_pause=False)
    assert never.run(100, [[0.1]], own=0.1) == 100


def test_searches_that_pay_now_and_then_do_not_pause() -> None:
    clock = Clock(1.0, 0.05, 1)
    searches = [clock.run(1, [[[0.9, 0.8], [0.05]][i % 2]], own=0.02) for i in range(200)]
    assert sum(searches) > 180


def test_a_slow_first_measurement_is_not_believed_for_ever() -> None:
    clock = Clock(1.0, 0.9, 1)
    probs = [[0.8, 0.7, 0.6, 0.5]]
    clock.run(300, probs)  # another process takes the processor while drafts are verified
    assert np.mean(clock.sums[-50:]) < 1.0
    clock.slope = 0.05
    clock.run(4000, probs)
    assert np.mean(clock.sums[-50:]) > 3.0


@pytest.mark.parametrize("cost", [0.01, 0.5])
def test_heads_are_read_where_they_pay(cost: float) -> None:
    """They cost `cost` of a step; drafts without them are nearly as good."""
    reads = []

    def spend(with_slots: bool) -> float:
        reads.append(with_slots)
        probs[0][:] = [0.9, 0.8] if with_slots else [0.8, 0.7]
        return cost if with_slots else 0.001

    probs = [[0.8, 0.7]]
    Clock(1.0, 0.05, 1, 2, has_slots=True).run(500, probs, slots=spend)
    assert (np.mean(reads[-200:]) > 0.9) == (cost == 0.01)
    assert 0 < np.mean(reads[-200:]) < 1  # the other is tried now and then


def test_searches_do_not_pause_while_heads_pay() -> None:
    def spend(with_slots: bool) -> float:
        probs[0][:] = [0.9, 0.8] if with_slots else [0.05, 0.0]
        return 0.1

    probs = [[0.9, 0.8]]
    assert Clock(1.0, 0.05, 1, 2, has_slots=True).run(500, probs, slots=spend) > 495


def test_steps_with_prompts_are_not_measured() -> None:
    lengths = DraftLengths(4, has_slots=False, may_pause=True)
    added: list[Any] = []
    for count in (1, 2):
        lengths._batch(count).add_step = lambda *values: added.append(values)  # type: ignore[method-assign]
    both = ["a", "b"]
    for one, expected in (
        (verify(["a"], [1], None), 0),  # the first
        (verify(both, [1, 0], None), 0),  # the prompt of b is read
        (verify(both, [1, 1], None), 0),  # the rest of it
        (verify(both, [2, 1], [2, 0]), 1),
        (verify(both, [1, 0], None), 1),  # b is read again after a preemption
        (verify(both, [1, 1], None), 1),
        (verify(["b"], [1], None), 2),  # a has ended
    ):
        lengths.observe(one, 1.0)
        lengths.finish(one, 0.5)
        assert len(added) == expected
    assert added == [(2, 0.5), (0, 0.5)]
