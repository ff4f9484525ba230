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

from lattice_bpd import NGramLM, _core
from lattice_bpd.build.job import read_costs
from lattice_bpd.decode.drafters.mixture import ROUNDED_UP
from lattice_bpd_vllm.counters import describe_costs


def make_text(lms: list[Any] | None = None) -> _core.MixtureText:
    """A text whose next tokens have the probabilities that heads give them, else an LM."""
    names = ["heads", *(["lm"] if lms else [])]
    weights = np.repeat([20.0, 10.0, 0.0][: len(names) + 1], _core.gate_bins(names)[1])
    text = _core.MixtureText(_core.Mixture(4, True, lms or [], False, theta=weights))
    text.append([1])
    return text


def arrays_of(probs: list[list[float]]) -> tuple[Any, Any, None]:
    """Candidates of heads, one for each slot, whose drafts' prefixes have these probabilities."""
    scores = np.full((len(probs), max(map(len, probs)), 1), -np.inf, np.float32)
    for row, one in zip(scores, probs, strict=True):
        with np.errstate(divide="ignore"):
            row[: len(one), 0] = np.log(np.divide(one, [1.0, *one[:-1]]))
    return np.ones(scores.shape, np.int32), scores, None


def num_searched(text: _core.MixtureText) -> int:
    """Tokens of the draft that was searched last."""
    for node in itertools.count():
        try:
            text.distribution_after(node)
        except IndexError:
            break
    return node - 1


def searched(probs: list[float], cost: float) -> int:
    """Tokens of a draft whose search ends where none can be worth its cost."""
    expected = ratio = 1.0
    for size, prob in enumerate(probs):
        ends = range(size + 1, len(probs) + 1)
        if all(expected + (end - size) * prob <= ratio * (1.0 + cost * end) for end in ends):
            return size
        expected += prob
        ratio = max(ratio, expected / (1.0 + cost * (size + 1)))
    return len(probs)


class Clock:
    """An engine whose steps take `base + slope * draft tokens` seconds.

    It accepts drafts as often as their probabilities say.
    """

    def __init__(
        self, base: float, slope: float, count: int, num_tokens: int = 4, *,
        has_slots: bool = False, may_pause: bool = True,
    ) -> None:  # fmt: skip
        self.lengths = _core.DraftLengths(num_tokens, has_slots, may_pause)
        self.base, self.slope, self.count = base, slope, count
        self.now, self.sums = 0.0, list[int]()
        self.drafted: list[list[float]] = [[] for _ in range(count)]
        self.texts = [make_text() for _ in range(count)]
        self._drafts = 0

    def run(self, steps: int, probs: Any, own: float = 0.0, slots: Any = None) -> int:
        """Searches among the steps; `slots` is told whether each was with heads."""
        names, searches = [str(i) for i in range(self.count)], 0
        for _ in range(steps):
            kept = [1 + self._accepted(i) for i in range(self.count)]
            is_paused = self.lengths.is_paused(self.count)
            verified = list(map(len, self.drafted))
            self.lengths.observe(names, kept, verified if any(self.drafted) else None, self.now)
            self.drafted = [[] for _ in range(self.count)]
            if not is_paused:
                searches += 1
                with_slots = self.lengths.reads_slots()
                spent = own if slots is None else slots(with_slots)
                self.now += spent
                heads = (None,) * 3 if slots is not None and not with_slots else arrays_of(probs)
                drafts = self.lengths.draft(
                    self.texts[: self.count], list(range(self.count)), list(map(len, probs)),
                    *heads, spent,
                )  # fmt: skip
                self.drafted = [one[: len(ids)] for one, ids in zip(probs, drafts, strict=True)]
            self.sums.append(sum(map(len, self.drafted)))
            self.lengths.finish(self.now)
            self.now += self.base + self.slope * self.sums[-1]
        return searches

    def _accepted(self, request: int) -> int:
        drafted = self.drafted[request]
        if not drafted:
            return 0
        self._drafts += 1
        even = self._drafts * 0.6180339887498949 % 1.0  # of an evenly distributed sequence
        return sum(prob > even for prob in drafted)


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
    if others is EVEN and slope == 0.1:
        first, second, third = map(len, clock.drafted)
        assert second <= first <= third


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


def test_other_programs_that_slow_all_steps_change_no_drafts() -> None:
    """How sizes compare is what counts, also where they were measured at different times."""
    rng, clock, level = np.random.default_rng(0), Clock(1.0, 0.1, 1, 8), 0.0
    probs = [np.linspace(0.9, 0.2, 8).tolist(), [0.5, 0.2], [0.3]]
    good = 0
    for n in range(1500):  # +-35 % over 600 steps, and +-14 % that last for some 15 steps
        level = 0.93 * level + 0.05 * rng.normal()
        noise = np.exp(0.35 * np.sin(n / 100) + level + 0.08 * rng.normal())
        clock.base, clock.slope = noise, 0.1 * noise
        one = [probs[n % 3]]
        clock.run(1, one)
        good += n >= 300 and clock.sums[-1] in best_sums(one, 1.0, 0.1)
    assert good > 1100


def test_another_number_of_requests_is_soon_known() -> None:
    """As a request ends, few steps tell what longer drafts cost."""
    probs = [[0.4, 0.3, 0.2, 0.1]] * 4
    clock = Clock(1.0, 0.1, 4)
    clock.run(600, probs)
    clock.count, clock.drafted, clock.sums = 3, [[]] * 3, []
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


def test_small_gains_count_where_drafts_pay() -> None:
    """Errors of estimates cannot make the mean slower than plain decoding there."""
    clock, lengths = Clock(1.0, 0.03, 1, 4), list[int]()
    for n in range(600):
        clock.run(1, [[0.06] if n % 3 == 0 else [0.9, 0.85, 0.8, 0.7]])
        if n % 3 == 0:
            lengths.append(clock.sums[-1])
    assert np.mean(lengths[-100:]) > 0.9


def test_chance_does_not_end_drafting() -> None:
    """Few drafts at the start are accepted; later ones as often as their probabilities say."""
    clock, probs = Clock(1.0, 0.03, 1, 4), [[0.3, 0.2, 0.12, 0.07]]
    clock.run(3, probs)
    for _ in range(6):
        clock.lengths.observe(["0"], [1], [len(clock.drafted[0])], clock.now)
        (draft,) = clock.lengths.draft(clock.texts, [0], [4], *arrays_of(probs), 0.0)
        clock.drafted = [probs[0][: len(draft)]]
    clock.sums = []
    clock.run(600, probs)
    assert int(np.median(clock.sums[-100:])) in best_sums(probs, 1.0, 0.03)


@pytest.mark.parametrize(
    ("name", "verified", "is_drafted"), [("0", 2, False), ("0", 1, True), ("new {}", 2, True)]
)
def test_drafts_that_are_not_accepted_are_no_longer_made(
    name: str, verified: int, is_drafted: bool
) -> None:
    """Though the mixture expects that they are. Drafts that were cut teach nothing, nor do those
    of a request whose place another one has."""
    clock = Clock(1.0, 0.3, 1)
    clock.run(400, [[0.8, 0.7]])
    for n in range(400):
        clock.lengths.observe([name.format(n)], [1], [verified], clock.now)
        clock.lengths.reads_slots()
        (draft,) = clock.lengths.draft(clock.texts, [0], [2], *arrays_of([[0.8, 0.7]]), 0.0)
    assert len(draft) == 2 * is_drafted


def test_no_longer_drafts_are_searched_than_twice_those_verified() -> None:
    clock = Clock(1.0, 0.01, 4, 8)
    clock.run(200, [[0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55]] * 4)
    assert num_searched(clock.texts[0]) == 8
    clock.slope = 1.0
    clock.run(1000, [[0.3, 0.1, 0.05, 0.02, 0.01, 0.01, 0.01, 0.01]] * 4)
    assert sum(clock.sums[-9:]) == 0  # the search after a step without drafts has no other limit
    assert num_searched(clock.texts[0]) <= 4


@pytest.mark.parametrize("slope", [0.003, 0.02, 0.1])
def test_searches_end_at_tokens_that_cannot_pay(slope: float) -> None:
    """A token costs each of 4 requests `slope` of a step; half of that is a safe estimate."""
    probs = (0.9 ** np.arange(1, 60)).tolist()
    clock = Clock(1.0, slope, 4, 59)
    clock.run(40, [[0.9, 0.8, 0.7, 0.6]] * 4)
    while clock.sums[-1] == 0:  # the search after a step without drafts has no other limit
        clock.run(1, [[0.9, 0.8, 0.7, 0.6]] * 4)
    clock.run(1, [probs] * 4)
    assert searched(probs, 2.0 * slope) <= num_searched(clock.texts[0]) <= searched(probs, slope)
    clock.slope = 9.0
    clock.run(20, [[0.2]] * 4)
    clock.run(1, [probs] * 4)
    assert num_searched(clock.texts[0]) >= 2 * searched(probs, 0.1)  # a trial drafts what there is


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
    assert clock.lengths.step_seconds(1) == {}
    clock.run(300, [[0.9, 0.8, 0.75, 0.7]])
    page = Path(__file__).resolve().parents[2] / "docs" / "serve.md"
    (pattern,) = re.findall(r"grep -o '(.*)' server.log", page.read_text(encoding="utf-8"))
    (costs_of_log,) = re.findall(
        pattern, f"by draft tokens: {describe_costs(clock.lengths.step_seconds(1))}"
    )
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


def test_heads_are_read_where_they_cost_little_of_what_drafts_gain() -> None:
    """They cost a hundredth of a step, then a third of what drafts gain, then a hundredth again.

    Drafts of the LM pay all the time.
    """
    lm = NGramLM.train([[1, 1, 1, 1, 2] * 8], 2, vocab_size=4, smoothing="witten_bell")
    clock = Clock(1.0, 0.05, 1, 2, has_slots=True)
    clock.texts = [make_text([lm._core])]
    for cost in (0.01, 0.5, 0.01):
        reads, probs = list[bool](), [[0.9, 0.8]]

        def spend(with_slots: bool, cost: float = cost, reads: list[bool] = reads) -> float:
            reads.append(with_slots)
            return cost if with_slots else 0.0001

        clock.run(600, probs, slots=spend)
        if cost == 0.01:
            assert all(reads[-200:])
        else:
            assert 0 < np.mean(reads[-200:]) < 0.03  # they are tried now and then
        assert np.mean(np.array(clock.sums[-200:]) == 2) > 0.9


def test_searches_do_not_pause_while_heads_pay() -> None:
    """Without them there is no draft."""
    assert Clock(1.0, 0.05, 1, 2, has_slots=True).run(500, [[0.9, 0.8]], own=0.1) == 500


def test_steps_with_prompts_are_not_measured() -> None:
    lengths, both = _core.DraftLengths(4, False, True), ["a", "b"]
    measured: tuple[dict[int, float], dict[int, float]] = ({}, {})
    for n, (names, kept, verified, count) in enumerate((
        (["a"], [1], None, 0),  # the first
        (both, [1, 0], None, 0),  # the prompt of b is read
        (both, [1, 1], None, 0),  # the rest of it
        (both, [2, 1], [2, 0], 2),
        (both, [1, 0], None, 0),  # b is read again after a preemption
        (both, [1, 1], None, 0),
        (["b"], [1], None, 1),  # a has ended
        (["b"], [1], None, 1),
        (["c"], [1], None, 0),
    )):  # fmt: skip
        lengths.observe(names, kept, verified, 1.0 + n)
        lengths.finish(1.0)
        if count:
            measured[count - 1][sum(verified or ())] = min(float(n), 6.0)  # a low one counts
        found = lengths.step_seconds(1), lengths.step_seconds(2)
        assert found == tuple(map(pytest.approx, measured))
