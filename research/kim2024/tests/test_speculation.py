"""Leviathan's theory of draft models: its formulas, and runs with a known acceptance rate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lattice_bpd_kim2024.costs import (
    acceptance_rate,
    best_draft_length,
    estimate_rate,
    expected_tokens,
    operations_factor,
    shared_noise_rate,
    walltime_improvement,
)

P = np.array([0.5, 0.3, 0.2, 0.0])
Q = np.array([0.2, 0.4, 0.1, 0.3])


def simulate(rate, draft_length, calls, rng):
    """Accepted draft tokens of calls whose tokens are accepted independently."""
    accepted = rng.random((calls, draft_length)) < rate
    return np.logical_and.accumulate(accepted, axis=1).sum(axis=1)


def test_acceptance_rates_by_hand():
    assert acceptance_rate(P, Q) == pytest.approx(0.2 + 0.3 + 0.1)
    assert acceptance_rate(P, P) == pytest.approx(1.0)
    assert acceptance_rate([P, P], [Q, P]) == pytest.approx(0.8)
    # min(p / l, q) with l = 1/2: 0.2 + 0.4 + 0.1
    assert acceptance_rate(P, Q, lenience=0.5) == pytest.approx(0.7)
    # token 0: 1 / (1 + max(0.6, 2) + max(0.4, 0.5) + 1.5); 1: 1 / (5/3 + 1 + 2/3 + 3/4);
    # 2: 1 / (5/2 + 4 + 1 + 3)
    by_hand = 1 / (1 + 2 + 0.5 + 1.5) + 1 / (5 / 3 + 1 + 2 / 3 + 3 / 4) + 1 / 10.5
    assert shared_noise_rate(P, Q) == pytest.approx(by_hand)
    assert shared_noise_rate(P, P) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(5))
def test_shared_noise_is_a_coupling_within_its_bounds(seed):
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(6, 0.5), 2)
    noise = rng.gumbel(size=(100_000, 6))
    same = ((np.log(p) + noise).argmax(1) == (np.log(q) + noise).argmax(1)).mean()
    rate, alpha = shared_noise_rate(p, q), acceptance_rate(p, q)
    assert abs(same - rate) < 5 * math.sqrt(rate / 100_000)
    assert alpha / (2 - alpha) - 1e-9 <= rate <= alpha + 1e-9


@pytest.mark.parametrize(("rate", "length"), [(0.0, 3), (0.3, 1), (0.6, 4), (0.9, 8), (1.0, 5)])
def test_expected_tokens_are_those_of_independent_acceptances(rate, length):
    tokens = simulate(rate, length, 200_000, np.random.default_rng(1)) + 1
    assert abs(tokens.mean() - expected_tokens(rate, length)) < 5 * tokens.std() / 447 + 1e-12
    assert walltime_improvement(rate, length, 0.1) == pytest.approx(
        expected_tokens(rate, length) / (1 + 0.1 * length)
    )
    assert operations_factor(rate, length, 0.1) == pytest.approx(
        (length * 1.1 + 1) / expected_tokens(rate, length)
    )


@pytest.mark.parametrize(
    ("rate", "length", "operations", "speed"),
    [(0.6, 2, 1.53, 1.96), (0.7, 3, 1.58, 2.53), (0.8, 2, 1.23, 2.44), (0.8, 5, 1.63, 3.69),
     (0.9, 2, 1.11, 2.71), (0.9, 10, 1.60, 6.86)],
)  # fmt: skip
def test_figures_of_the_paper(rate, length, operations, speed):
    """Table 1 of Leviathan et al. 2023, for draft models that cost nothing."""
    assert round(operations_factor(rate, length, 0.0), 2) == operations
    assert round(walltime_improvement(rate, length, 0.0), 2) == speed


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("cost", [0.01, 0.05, 0.3, 0.9])
def test_the_best_draft_length_is_the_best(rate, cost):
    best = best_draft_length(rate, cost)
    gains = [walltime_improvement(rate, length, cost) for length in range(65)]
    assert gains[best] == max(gains)
    assert (best > 0) == (rate > cost)  # corollary 3.9
    if best:
        assert gains[best] >= (1 + rate) / (1 + cost) - 1e-12


@pytest.mark.parametrize("rate", [0.2, 0.7, 0.97])
def test_a_rate_is_estimated_from_a_run(rate):
    rng = np.random.default_rng(0)
    lengths = [2, 5, 9, 0]
    accepted = [simulate(rate, n, 20_000, rng) if n else np.zeros(9, int) for n in lengths]
    drafted = [np.full(len(a), n) for a, n in zip(accepted, lengths, strict=True)]
    found = estimate_rate(np.concatenate(accepted), np.concatenate(drafted))
    assert abs(found - rate) < 0.01


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: acceptance_rate(P, Q[:3]), r"shapes \(4,\) and \(3,\); expected two of one shape"),
        (lambda: acceptance_rate(P, 2 * Q), "probabilities that sum to 1"),
        (lambda: acceptance_rate(P, Q, lenience=0.0), "lenience is 0.0; expected above 0"),
        (lambda: expected_tokens(1.1, 3), "acceptance rate is 1.1"),
        (lambda: walltime_improvement(0.5, -1, 0.1), "draft_length -1"),
        (lambda: estimate_rate([1], [1, 2]), "1 accepted lengths, 2 draft lengths"),
    ],
)
def test_bad_numbers_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def constant_model(probs):
    """A causal LM whose next token has the same distribution after every text."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=len(probs), n_positions=128, n_embd=8, n_layer=1, n_head=2, bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.copy_(torch.eye(8)[0])
        model.transformer.wte.weight[:, 0] = torch.tensor(probs).log()
    return model


@pytest.mark.parametrize("lenience", [1.0, 0.5, None])
def test_runs_with_a_known_rate_agree_with_the_theory(lenience):
    """p and q do not depend on the text, so acceptances are independent and rate is known."""
    pytest.importorskip("torch")
    from lattice_bpd.verify import Rejection, Sampled
    from lattice_bpd_kim2024.live.speculation import measure_speculation

    p, q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.2, 0.35, 0.1, 0.35])
    if lenience is None:
        rule, rate = Sampled(seed=3), shared_noise_rate(p, q)
    else:
        rule = Rejection(seed=3, lenience=lenience)
        rate = acceptance_rate(p, q, lenience)
    prompts = [[number % 4, number // 4 % 4, number // 16] for number in range(8)]
    runs = measure_speculation(
        constant_model(p), constant_model(q), prompts, [rule], [1, 4], max_new_tokens=80
    )
    assert [run.prediction.draft_length for run in runs] == [1, 4]
    for run in runs:
        length = run.prediction.draft_length
        assert run.prediction.acceptance_rate == pytest.approx(rate, abs=1e-5)
        assert abs(run.acceptance_rate - rate) < 5 * math.sqrt(rate * (1 - rate) / (run.calls))
        wanted = expected_tokens(rate, length)
        assert abs(run.tokens_per_call - wanted) < 5 * length / 2 / math.sqrt(run.calls)
        assert run.tokens == 8 * 80


def varied_model(seed):
    """A causal LM whose distributions depend on the last tokens."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=8, n_positions=128, n_embd=16, n_layer=1, n_head=2, bos_token_id=None,
        eos_token_id=None, initializer_range=0.4,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize("lenience", [1.0, 0.5, None])
def test_judged_tokens_are_accepted_as_their_distributions_predict(lenience):
    """Acceptances depend on the text, and so on each other; tokens that no call judges are out."""
    pytest.importorskip("torch")
    from lattice_bpd.verify import Rejection, Sampled
    from lattice_bpd_kim2024.live.speculation import measure_speculation

    rule = Sampled(seed=4) if lenience is None else Rejection(seed=4, lenience=lenience)
    prompts = [[number, 7 - number] for number in range(8)]
    runs = measure_speculation(
        varied_model(0), varied_model(1), prompts, [rule], [1, 3], max_new_tokens=60
    )
    for run in runs:
        assert 0.1 < run.judged_rate < 0.95
        assert run.judged_rate != run.prediction.acceptance_rate
        deviation = math.sqrt(run.judged_rate * (1 - run.judged_rate) / run.calls)  # at most
        assert abs(run.acceptance_rate - run.judged_rate) < 4 * deviation


class Clock:
    """A clock that only the models and the sampling of drafts advance."""

    def __init__(self) -> None:
        self.now = 0.0

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self) -> float:
        return self.now


TARGET_SECONDS, DRAFT_SECONDS, SAMPLING_SECONDS = 8.0, 2.0, 0.5


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("lenience", [1.0, 0.5])
def test_the_cost_is_of_calls_and_the_overhead_of_the_rest(monkeypatch, length, lenience):
    pytest.importorskip("torch")
    from lattice_bpd.verify import Rejection
    from lattice_bpd_drafters import draft_model_trees
    from lattice_bpd_kim2024.live.speculation import measure_speculation

    clock = Clock()
    monkeypatch.setattr("time.perf_counter", clock)
    target, small = constant_model([0.4, 0.3, 0.2, 0.1]), constant_model([0.1, 0.2, 0.3, 0.4])
    for model, seconds in ((target, TARGET_SECONDS), (small, DRAFT_SECONDS)):
        model.transformer.register_forward_hook(lambda *_, seconds=seconds: clock.advance(seconds))
    find_failed = draft_model_trees.find_failed  # called once for each sampled draft token

    def slow(logits):
        clock.advance(SAMPLING_SECONDS)
        return find_failed(logits)

    monkeypatch.setattr(draft_model_trees, "find_failed", slow)
    prompts = [[0, 1], [2], [3, 3, 1]]
    rule = Rejection(seed=1, lenience=lenience)
    (run,) = measure_speculation(target, small, prompts, [rule], [length], max_new_tokens=20)
    assert run.prediction.cost == pytest.approx(DRAFT_SECONDS / TARGET_SECONDS)
    assert run.overhead == pytest.approx(SAMPLING_SECONDS / TARGET_SECONDS)
    line = run.to_json()
    assert line["overhead"] == run.overhead
    rate = acceptance_rate([0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], lenience)
    assert line["improvement"] == pytest.approx(walltime_improvement(rate, length, 0.25), abs=1e-4)
    # Each verifying call has a draft but the last of a text, where none may fit.
    calls = [TARGET_SECONDS * 60, TARGET_SECONDS * (run.calls + len(prompts))]
    per_token = DRAFT_SECONDS + SAMPLING_SECONDS
    least = per_token * length * (run.calls - 2 * len(prompts))
    most = per_token * (length + 1) * run.calls
    assert calls[0] / (calls[1] + most) < run.improvement < calls[0] / (calls[1] + least)
