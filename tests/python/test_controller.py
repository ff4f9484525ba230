"""The controller: estimates, what it chooses on a simulated clock; output stays greedy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from blockwise_models import random_model
from controller_simulation import FakeState, Simulation
from lattice_bpd.decode import PBestDrafter, TreeDrafter, generate
from lattice_bpd.decode.adaptive import Controller, Experience
from lattice_bpd.decode.adaptive.experience import Profile, experience_of
from lattice_bpd.decode.adaptive.latencies import Latencies
from lattice_bpd.decode.drafters.acceptance_rates import Calibration


def test_latencies_are_moving_averages() -> None:
    latencies = Latencies()
    with pytest.raises(ValueError, match="no measurement yet"):
        latencies.at(3)
    latencies.add(0, 1.0)
    assert latencies.at(8) == pytest.approx(1.0)  # nothing else is known
    for _ in range(30):
        latencies.add(0, 1.0)
        latencies.add(8, 2.0)
        latencies.add(16, 4.0)
    assert [latencies.at(size) for size in (0, 4, 8, 12, 16, 24)] == pytest.approx(
        [1.0, 1.5, 2.0, 3.0, 4.0, 6.0], rel=0.02
    )
    latencies.add(8, 20.0)  # one delay moves its size and all others together, and little
    assert latencies.at(8) < 5.5
    assert latencies.at(8) / latencies.at(16) < 0.75
    assert latencies.counts == {0: 31, 8: 31, 16: 30}


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_latencies_follow_the_speed_of_the_machine(noise: float) -> None:
    rng = np.random.default_rng(0)
    latencies = Latencies()

    def run(steps: int, sizes: list[int], factor: float) -> None:
        for _ in range(steps):
            size = int(rng.choice(sizes))
            latencies.add(size, factor * (1.0 + 0.1 * size) * (1.0 + noise * rng.random()))

    run(80, [0, 4, 8], 1.0)
    for factor in (1.7, 0.8, 2.5, 1.0):  # only one size is measured, yet all are updated
        run(12, [8], factor)
        assert latencies.at(8) == pytest.approx(1.8 * factor * (1.0 + noise / 2), rel=0.15)
        assert latencies.at(0) == pytest.approx(factor * (1.0 + noise / 2), rel=0.3)


def test_calibration_learns_how_often_nodes_are_accepted() -> None:
    log_probs = np.log(np.array([0.9, 0.9, 0.3, 0.3], np.float32))
    calibration = Calibration()
    np.testing.assert_allclose(calibration.expected(log_probs), [0.9, 1.8, 2.1, 2.4], rtol=1e-5)
    for _ in range(200):
        calibration.add(log_probs, np.array([True, False, False, False]))
    expected = np.diff(calibration.expected(log_probs), prepend=0.0)
    assert 0.45 < expected[0] < 0.6  # half of those nodes were accepted
    assert expected[2] < 0.05
    assert (np.diff(expected) <= 0.0).all()


def test_expected_tokens_of_a_profile_are_moving_averages() -> None:
    profile = Profile()
    profile.add_tree([2, 4], [1.0, 1.5])
    assert profile.accepted == {2: 1.0, 4: 1.5}
    profile.add_tree([2, 4], [2.0, 2.5])
    assert profile.accepted == pytest.approx({2: 1.2, 4: 1.7})
    profile.add_tree([2], [1.2])  # a smaller tree says nothing of 4 ..
    profile.add_tree([2, 4], [1.2, 1.3])  # .. which then continues from 2
    assert profile.accepted == pytest.approx({2: 1.2, 4: 1.3})


def test_drafting_pauses_where_it_does_not_pay_and_longer_each_time() -> None:
    profile = Profile()
    profile.latencies.add(0, 1.0)
    pauses = []
    for _ in range(8):
        profile.add_interval(4, tokens=4.0, expected=1.5, seconds=2.0)  # half of greedy's speed
        pauses.append(profile.cooldown)
    assert pauses == [8, 16, 32, 64, 128, 256, 512, 512]
    for _ in range(8):
        profile.add_interval(12, tokens=48.0, expected=4.0, seconds=2.0)
    assert profile.speedup == pytest.approx(2.0, rel=0.05)
    assert profile.next_cooldown == 8


def test_what_a_text_accepts_counts_more_than_what_is_expected() -> None:
    profile = Profile()
    profile.latencies.add(0, 1.0)
    speedups = []
    for _ in range(6):  # 3 tokens a step are expected, and 1 is decoded
        profile.add_interval(12, tokens=12.0, expected=3.0, seconds=1.0)
        speedups.append(profile.speedup)
    assert speedups[0] < 1.6
    assert speedups[-1] < 1.15
    profile.begin_text()
    profile.add_interval(12, tokens=60.0, expected=3.0, seconds=1.0)
    assert profile.speedup > 3.0


def test_a_new_text_ends_a_pause_unless_drafts_paid_in_few_texts() -> None:
    profile = Profile()
    profile.begin_text()
    assert profile.worth == 0.5  # nothing is known of texts without steps
    for worth in (0.4, 0.32, 0.256, 0.2048):
        profile.is_paused, profile.cooldown = True, 100
        profile.begin_text()
        assert profile.worth == pytest.approx(worth)
        assert profile.cooldown == 0
    profile.is_paused, profile.cooldown = True, 100
    profile.begin_text()
    assert profile.cooldown == 100
    profile.is_paused, profile.steps, profile.speedup = False, 30.0, 2.0
    profile.begin_text()
    assert profile.worth == pytest.approx(0.8 * 0.8 * 0.2048 + 0.2)


def test_intervals_that_were_interrupted_are_not_measured() -> None:
    state: Any = FakeState([0])
    controller = Controller(TreeDrafter(None, max_nodes=4))
    controller.propose([state])  # greedy, at first
    state.stats.target_calls += 5  # calls of another user
    other: Any = FakeState([0])
    controller.propose([other])
    assert controller.experience.profile(1).latencies.counts == {}


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
    assert rate >= (0.95 - 0.02 * noise) * run.best(truth)  # the run is a sample itself


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
    assert np.mean(rates[0.0][-50:]) > 0.98  # if they pay in no text, it rarely tries


@pytest.mark.parametrize("batch", [1, 3])
def test_controller_lossless(batch: int) -> None:
    model = random_model("llama")
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, model.vocab_size, 5 + n).tolist() for n in range(batch)]
    wanted = [generate(model, prompt, "greedy", max_new_tokens=30) for prompt in prompts]
    experience = Experience()
    for _ in range(3):
        controlled = Controller(TreeDrafter(None, top_k=4, max_nodes=12), experience)
        results = generate(model, prompts, drafter=controlled, max_new_tokens=30)
        assert [f.token_ids for f in results] == [w.token_ids for w in wanted]
    assert experience.profiles[batch].decisions > 6
    assert experience.profiles[batch].latencies.counts[0] >= 2
    results = generate(model, prompts, "auto", max_new_tokens=30, top_k=4)
    assert [f.token_ids for f in results] == [w.token_ids for w in wanted]


def test_controller_is_remembered_for_the_model() -> None:
    model = random_model("llama")
    generate(model, [1, 2, 3], "auto", max_new_tokens=20, top_k=4)
    remembered = experience_of(model)
    decisions = remembered.profiles[1].decisions
    for _ in range(8):
        generate(model, [1, 2, 3], "auto", max_new_tokens=20, top_k=4)
    assert remembered.profiles[1].decisions > decisions
    assert experience_of(random_model("gpt2")) is not remembered


def test_controller_needs_trees() -> None:
    model = random_model("llama")
    with pytest.raises(TypeError, match="PBestDrafter proposed drafts without probabilities"):
        generate(model, [1, 2, 3], drafter=Controller(PBestDrafter(None, top_k=4)))

    class Alone:
        max_nodes = 4

        def propose(self, states: Any) -> list[None]:
            return [None] * len(states)

    prompts = [[1, 2], [3, 4]]
    results = generate(model, prompts, drafter=Controller(Alone()), max_new_tokens=9)
    wanted = generate(model, prompts, "greedy", max_new_tokens=9)
    assert [f.token_ids for f in results] == [w.token_ids for w in wanted]
