"""The controller: its books, what it chooses on a simulated clock; output stays greedy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from blockwise_models import random_model
from controller_simulation import FakeState, Simulation
from lattice_bpd.decode import (
    Controller,
    Experience,
    LatticeDrafter,
    TreeDrafter,
    generate,
    generate_batch,
)
from lattice_bpd.decode.adaptive.experience import Book, experience_of
from lattice_bpd.decode.adaptive.observed_steps import Before, Gap
from lattice_bpd.decode.adaptive.step_costs import StepCosts
from lattice_bpd.decode.adaptive.throughput import Balance
from lattice_bpd.decode.drafters.acceptance_rates import Calibration, kept_nodes


def test_controller_step_costs() -> None:
    costs = StepCosts()
    with pytest.raises(ValueError, match="no times yet"):
        costs.at(3)
    costs.add(4, 90.0)
    assert costs.seconds([0, 4, 6]) == pytest.approx([90.0] * 3, rel=0.01)
    costs.add(4, 2.0)  # first times do not count
    assert costs.seconds([0, 4, 6]) == pytest.approx([2.0] * 3, rel=0.01)
    costs.add(8, 300.0)
    for _ in range(40):
        costs.add(8, 4.0)
        costs.add(4, 2.0)
    assert costs.seconds([4, 6, 8]) == pytest.approx([2.0, 3.0, 4.0], rel=0.03)
    costs.add(8, 400.0)  # a hiccup
    assert costs.at(8) < 6.5
    assert (costs.count(8), costs.count(5)) == (42, 0)


def test_controller_step_costs_learn_from_their_neighbours() -> None:
    costs = StepCosts()
    for _ in range(30):
        for size in (0, 4, 18):
            costs.add(size, 1.0 + 0.05 * size)
    assert costs.at(4) == pytest.approx(1.2, rel=0.02)
    costs.add(8, 5.0)
    costs.add(8, 5.0)  # once, on a machine that was busy: its neighbours know better
    costs.add(4, 1.2)
    assert costs.at(8) < 2.2
    for _ in range(300):  # but it may be as it is
        costs.add(8, 1.9)
        costs.add(18, 1.9)
        costs.add(4, 1.2)
    assert costs.seconds([4, 8, 18]) == pytest.approx([1.2, 1.9, 1.9], rel=0.05)


def test_controller_step_costs_are_drawn_as_they_are_uncertain() -> None:
    costs = StepCosts()
    for _ in range(100):
        costs.add(0, 1.0)
        costs.add(8, 2.0)
    for _ in range(3):
        costs.add(72, 4.0)
    draws = np.array([costs.seconds([0, 8, 72], drawn=True) for _ in range(200)])
    ratios = np.log(draws / draws[:, :1])
    assert np.exp(ratios.mean(axis=0)) == pytest.approx([1.0, 2.0, 4.0], rel=0.1)
    spread = ratios.std(axis=0)
    assert 0.0 < spread[1] < spread[2]


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_controller_step_costs_follow_the_pace_of_the_machine(noise: float) -> None:
    rng = np.random.default_rng(0)
    costs = StepCosts()

    def run(steps: int, sizes: list[int], pace: float, times: int = 1) -> None:
        for _ in range(steps):
            size = int(rng.choice(sizes))
            costs.add(size, pace * (1.0 + 0.1 * size) * (1.0 + noise * rng.random()), times)

    run(60, [0, 4, 8], 1.0)
    found = np.array(costs.seconds([0, 4, 8]))
    np.testing.assert_allclose(found / found[0], [1.0, 1.4, 1.8], rtol=0.08)
    for pace in (1.7, 0.8, 2.5, 1.0):  # only one size is used, yet all become dearer
        run(60, [8], pace, times=2)
        found = np.array(costs.seconds([0, 4, 8]))
        np.testing.assert_allclose(found, pace * (1.0 + noise / 2) * np.array([1.0, 1.4, 1.8]),
                                   rtol=0.12 + 0.5 * noise)  # fmt: skip
        np.testing.assert_allclose(found / found[0], [1.0, 1.4, 1.8], rtol=0.12)
    costs = StepCosts()
    run(3, [2], 1.0, times=7)
    assert costs.at(2) == pytest.approx(1.2 * (1.0 + noise / 2), rel=0.2)
    assert costs.count(2) == 21


def test_controller_step_costs_compare_sizes_that_took_turns() -> None:
    rng = np.random.default_rng(0)
    costs = StepCosts()
    for pace in rng.uniform(0.6, 1.6, 60):
        costs.add_mixed([(8, pace, 8), (12, 1.03 * pace, 8)])
    assert costs.at(12) / costs.at(8) == pytest.approx(1.03, abs=0.005)
    costs.add_mixed([])
    with pytest.raises(ValueError, match="0 steps of 12 draft tokens"):
        costs.add_mixed([(8, 1.0, 8), (12, 1.0, 0)])
    assert (costs.count(8), costs.count(12)) == (480, 480)


def test_controller_gap_times_each_size() -> None:
    state: Any = FakeState([0])
    for sizes, timed in [
        ((4,), [(4, 1.0, 5)]),
        ((4, 8), [(4, 1.0, 3), (8, 1.0, 2)]),
        ((1, 2, 3, 4, 5, 6), [(n, 1.0 + 2.0 * (n == 3), 1) for n in range(1, 6)]),
    ]:
        gap = Gap(Before([state]), sizes, Book(), [0.0, 1.0, 2.0, 5.0, 6.0])
        assert gap.timings(7.0) == timed


def test_controller_calibration() -> None:
    log_probs = np.log(np.array([0.9, 0.9, 0.3, 0.3], np.float32))
    calibration = Calibration()
    np.testing.assert_allclose(calibration.expected(log_probs), [0.9, 1.8, 2.1, 2.4], rtol=1e-5)
    for _ in range(200):
        calibration.add(log_probs, np.array([True, False, False, False]))
    expected = np.diff(calibration.expected(log_probs), prepend=0.0)
    assert 0.45 < expected[0] < 0.6  # half of those nodes were kept
    assert expected[2] < 0.05
    assert (np.diff(expected) <= 0.0).all()


def test_controller_kept_nodes() -> None:
    #  5 -> 6 -> 7, 5 -> 8, 9
    kept = kept_nodes([5, 9, 6, 8, 7], [-1, -1, 0, 0, 2], [0, 0, 1, 1, 2], [5, 6, 3])
    assert kept == [True, False, True, False, False]
    assert kept_nodes([6], [-1], [0], []) == [False]


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize(
    ("truth", "slope", "draft"),
    [(0.0, 0.1, 0.5), (0.1, 0.2, 0.5), (0.3, 0.05, 0.1), (0.5, 0.1, 0.1), (0.8, 0.02, 0.2),
     (0.95, 0.01, 0.1), (0.8, 1.0, 0.1)],
)  # fmt: skip
def test_controller_comes_near_the_best_size(
    monkeypatch: pytest.MonkeyPatch, truth: float, slope: float, draft: float, noise: float
) -> None:
    run = Simulation(monkeypatch, slope=slope, draft=draft, noise=noise)
    run.run(truth, 3000)
    rate = run.tokens / (run.clock.now - run.slow)
    assert rate >= 0.97 * run.fixed(truth, 0)
    assert rate >= (0.95 - 0.02 * noise) * run.best(truth)  # the run is a draw itself


def test_controller_notices_when_the_text_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Simulation(monkeypatch, slope=0.02, draft=0.2)
    rates = [run.run(truth, 1500) for truth in (0.0, 0.9, 0.0)]
    assert rates[0] > 0.95
    assert rates[1] > 4.0
    assert rates[2] > 0.93  # some steps until it believes


def test_controller_tries_again_in_another_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts in which drafts never pay do not keep it from those in which they do."""
    run = Simulation(monkeypatch, slope=0.02, draft=0.2, tick=0.002)
    rates: dict[float, list[float]] = {0.0: [], 0.9: []}
    for number in range(60):
        run.begin_text()
        truth = 0.9 if number % 3 == 2 else 0.0
        rates[truth].append(run.run(truth, 80))
    assert np.mean(rates[0.9][2:]) > 0.9 * run.best(0.9)
    assert np.mean(rates[0.0]) > 0.8
    for _ in range(60):
        run.begin_text()
        rates[0.0].append(run.run(0.0, 80))
    assert np.mean(rates[0.0][-50:]) > 0.98  # where they pay in no text, it seldom tries


def test_controller_rests_shortly_behind_drafts_that_paid() -> None:
    book = Book()
    for _ in range(2):
        book.costs.add(0, 1.0)
        book.costs.add(4, 1.5)
    for _ in range(4):
        book.begin_rest()
    assert (book.resting, book.rest) == (63, 128)
    book.try_again()
    book.note(10, 3.0, 3.0, 1.5)
    assert book.rest == 128
    book.note(40, 3.0, 3.0, 1.5)
    assert book.pays()
    assert book.rest == 8


def test_controller_weighs_texts() -> None:
    book = Book()
    book.begin_text()
    assert book.worth == 0.5  # nothing is known of texts without steps
    for worth in (0.4, 0.32, 0.256, 0.2048):
        book.resting, book.gap = 100, 63
        book.begin_text()
        assert book.worth == pytest.approx(worth)
        assert (book.resting, book.gap) == (0, 0)
    book.resting, book.gap = 100, 63
    book.begin_text()
    assert (book.resting, book.gap) == (100, 63)  # drafts paid in none of late
    book.resting = 0
    for _ in range(2):
        book.costs.add(0, 1.0)
    book.note(30, 3.0, 3.0, 1.5)
    book.begin_text()
    assert book.worth > 0.2
    assert book.balance.steps == pytest.approx(4.0)  # of the text before
    worth = book.worth
    book.begin_text()
    assert book.worth == worth  # a text without steps


def test_controller_gap_tells_news() -> None:
    state: Any = FakeState([0])
    book = Book(kept={4: 2.0, 8: 4.0})
    for _ in range(2):
        book.costs.add(0, 1.0)
    gap = Gap(Before([state]), (4, 8), book, [0.0] * 8)
    assert gap.promised == 4.0
    for gained, amiss in [(8, True), (15, True), (16, False), (64, False), (65, True)]:
        state.tokens = [0] * (1 + gained)
        assert gap.gained() == gained
        assert gap.is_amiss() == gap.is_news(8.0) == amiss
    state.tokens = [0] * 19
    assert not gap.is_news(18.0)
    assert gap.is_news(22.0)  # greedy steps would have given 22 tokens
    assert not Gap(Before([state]), (0,), book, [0.0] * 8).is_news(22.0)


def test_controller_believes_what_was_kept_in_this_text() -> None:
    balance = Balance()
    assert balance.ratio() == 1.0
    assert balance.believed(3.0) == pytest.approx(3.0)
    balance.note(12, 1.0, 3.0, 1.5)
    assert 1.0 < balance.believed(3.0) < 1.6
    assert balance.ratio() < 0.8
    balance.begin_text()
    assert balance.believed(3.0) == pytest.approx(3.0)
    balance.note(12, 5.0, 3.0, 1.5)
    assert 4.0 < balance.believed(3.0) < 5.0
    assert 2.0 < balance.ratio() < 3.0
    balance.forget()
    assert balance.ratio() == 1.0
    assert 4.0 < balance.believed(3.0) < 5.0


@pytest.mark.parametrize("batch", [1, 3])
def test_controller_lossless(batch: int) -> None:
    model = random_model("llama")
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, model.vocab_size, 5 + n).tolist() for n in range(batch)]
    wanted = [generate(model, prompt, "greedy", max_new_tokens=30) for prompt in prompts]
    experience = Experience()
    for _ in range(3):
        controlled = Controller(TreeDrafter(None, top_k=4, max_nodes=12), experience)
        found = generate_batch(model, prompts, drafter=controlled, max_new_tokens=30)
        assert [f.token_ids for f in found] == [w.token_ids for w in wanted]
    assert experience.books[batch].looks > 10
    assert experience.books[batch].costs.count(0) >= 2
    found = generate_batch(model, prompts, "auto", max_new_tokens=30, top_k=4)
    assert [f.token_ids for f in found] == [w.token_ids for w in wanted]


def test_controller_is_remembered_for_the_model() -> None:
    model = random_model("llama")
    generate(model, [1, 2, 3], "auto", max_new_tokens=20, top_k=4)
    remembered = experience_of(model)
    looks = remembered.books[1].looks
    for _ in range(8):  # where nothing pays, looks are up to 63 steps apart
        generate(model, [1, 2, 3], "auto", max_new_tokens=20, top_k=4)
    assert remembered.books[1].looks > looks
    assert experience_of(random_model("gpt2")) is not remembered


def test_controller_needs_trees() -> None:
    model = random_model("llama")
    with pytest.raises(TypeError, match="LatticeDrafter proposed drafts without probabilities"):
        generate(model, [1, 2, 3], drafter=Controller(LatticeDrafter(None, top_k=4)))

    class Alone:
        max_nodes = 4

        def propose(self, state: Any) -> None: ...

    prompts = [[1, 2], [3, 4]]
    found = generate_batch(model, prompts, drafter=Controller(Alone()), max_new_tokens=9)
    wanted = generate_batch(model, prompts, "greedy", max_new_tokens=9)
    assert [f.token_ids for f in found] == [w.token_ids for w in wanted]
