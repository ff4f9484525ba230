"""Sampling: the output has the target's distribution, and with a seed it is plain sampling's."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import VOCAB, model_of, small_lm
from lattice_bpd import DraftConfig, NGramLM
from lattice_bpd.decode import TreeDrafter, generate
from lattice_bpd.decode.drafters import MixtureDrafter, SampledTreeDrafter
from lattice_bpd.verify import Rejection, Sampled
from lattice_bpd.verify.acceptance.warp import Warp
from lattice_bpd.verify.greedy import DraftCandidates
from sampled_sequences import check_sequences, tiny_model

pytestmark = pytest.mark.filterwarnings("ignore:Katz")  # corpora made up for tests

RULES = (Sampled, Rejection)
NUM_TESTS = 12  # distributions that this file tests, for Bonferroni
LEVEL = 1e-4 / NUM_TESTS


def chi_square_bound(freedom: int) -> float:
    """At least the upper quantile at LEVEL (Laurent and Massart 2000, lemma 1)."""
    x = -math.log(LEVEL)
    return freedom + 2 * math.sqrt(freedom * x) + 2 * x


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    expected = probabilities * counts.sum()
    assert counts[expected == 0].sum() == 0
    used = expected > 0
    return float(((counts - expected)[used] ** 2 / expected[used]).sum())


def assert_distribution(counts: np.ndarray, probabilities: np.ndarray) -> None:
    freedom = int((probabilities > 0).sum()) - 1
    assert chi_square(counts, probabilities) < chi_square_bound(freedom)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.5}, "temperature is -0.5; expected a number above 0"),
        ({"temperature": 0.0}, "use Exact()"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"min_p": 1.0}, "min_p is 1.0"),
    ],
)
@pytest.mark.parametrize("rule", RULES)
def test_sampling_refuses_numbers_out_of_range(rule, options, message):
    with pytest.raises(ValueError, match=r"sampling: .*expected") as caught:
        rule(**options)
    assert message in str(caught.value)


def test_sampling_says_what_is_wrong_with_seeds_and_logits():
    with pytest.raises(ValueError, match="2 seeds for 3 texts or more"):
        Sampled(seed=[1, 2]).start(2, [5])
    for rule in RULES:
        with pytest.raises(ValueError, match="logits hold NaN"):
            rule().start(0, [5]).choose(torch.tensor([0.0, math.nan, 1.0]), DraftCandidates((), 0))
    candidates = DraftCandidates([1, 1], 0, (np.array([0, 1]), np.array([0.5, 0.5])))
    logits = torch.tensor([9.0, -9.0])
    with pytest.raises(ValueError, match="draft token 1 has no probability left"):
        Rejection().start(0, [5]).choose(logits, candidates)
    wrong = DraftCandidates([1], 0, (np.array([0, 7]), np.array([0.5, 0.5])))
    with pytest.raises(ValueError, match=r"token 7 .*expected tokens in 0\.\.1"):
        Rejection().start(0, [5]).choose(logits, wrong)


def warped(logits: torch.Tensor, options: dict) -> np.ndarray:
    scores = Warp(**options).apply(logits).astype(np.float64)
    probabilities = np.exp(scores - scores.max())
    return probabilities / probabilities.sum()


def sample_without_replacement(probabilities: np.ndarray, uniforms: np.ndarray) -> list[int]:
    """Samples without replacement, one for each uniform number."""
    left, samples = probabilities.copy(), []
    for uniform in uniforms:
        token = int(np.searchsorted(left.cumsum() / left.sum(), uniform, side="right"))
        samples.append(token)
        left[token] = 0.0
    return samples


@pytest.mark.parametrize("num_samples", [1, 2, 4])
def test_rejection_sampling_has_the_targets_distribution(num_samples):
    """Of tokens, and of the pairs (first sample, token): both must be independent."""
    logits = torch.tensor([0.3, 2.0, -1.0, 0.0, 1.1])
    wanted = warped(logits, {})
    ids = np.array([0, 1, 2, 3], np.int32)  # never drafts token 4
    probabilities = np.array([0.1, 0.2, 0.3, 0.4])
    selector = Rejection(seed=4).start(0, [1])
    uniforms = np.random.default_rng(num_samples).random((340_000, num_samples)).tolist()
    tokens, accepted = [], 0
    for row in uniforms:
        samples = sample_without_replacement(probabilities, row)
        token = selector.choose(logits, DraftCandidates(samples, 0, (ids, probabilities)))
        tokens.append(token)
        accepted += token in samples
    assert_distribution(np.bincount(tokens, minlength=5), wanted)
    if num_samples == 1:  # 1 - total variation
        share = np.minimum(wanted[:4], probabilities).sum()
        assert abs(accepted / len(tokens) - share) < 0.01


LM = NGramLM.train([[1, 2, 3, 0, 0, 2] * 20], 2, vocab_size=4, smoothing="witten_bell")
DRAFTERS = {
    "tree": TreeDrafter(LM, top_k=3, max_nodes=5),
    "sampled": SampledTreeDrafter(LM, top_k=3, max_nodes=5),
    "mixture": MixtureDrafter([LM], top_k=3, max_nodes=2),
    "mixture with heads": MixtureDrafter([LM], heads=True, top_k=3, max_nodes=2),
}


@pytest.mark.parametrize("sampling", [{"temperature": 1.6}, {"temperature": 2.5, "top_p": 0.8}])
@pytest.mark.parametrize("name", DRAFTERS)
def test_sampled_sequences_have_the_targets_distribution(name, sampling):
    table = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    heads = None if name == "mixture" else lambda hidden: table.expand(len(hidden), -1, -1)
    calls = check_sequences(tiny_model(0), DRAFTERS[name], sampling, heads=heads)
    assert calls < 2.9  # drafts were accepted


PROMPTS = [np.random.default_rng(number).integers(0, VOCAB, 3 + number % 9).tolist()
           for number in range(12)]  # fmt: skip


@pytest.mark.parametrize("strategy", ["tree", "p_best", "bpd", "sampled", "mixture"])
@pytest.mark.parametrize(
    "options", [{"temperature": 1.0}, {"temperature": 0.6, "top_p": 0.9}, {"top_k": 8}]
)
def test_sampling_with_a_seed_is_plain_sampling(strategy, options):
    rule = Sampled(**options, seed=11)
    calls = tokens = 0
    for prompt in PROMPTS:
        plain = generate(model_of("trained"), prompt, "greedy", acceptance=rule, max_new_tokens=40)
        result = generate(
            model_of("trained"), prompt, DraftConfig(strategy, top_k=8), lm=small_lm(),
            acceptance=rule, max_new_tokens=40,
        )  # fmt: skip
        assert result.token_ids == plain.token_ids
        assert (result.acceptance, result.lossless) == ("sampled", True)
        calls, tokens = calls + result.stats.target_calls, tokens + result.stats.tokens
    if strategy != "mixture":  # which may find that drafts do not pay
        assert calls < 0.95 * tokens


@pytest.mark.parametrize("rule", [Sampled(seed=5), Rejection(0.8, seed=5)])
@pytest.mark.parametrize("layout", ["rows", "tree"])
def test_sampling_a_batch_is_sampling_alone(rule, layout):
    strategy = "sampled" if isinstance(rule, Rejection) else "tree"
    options = {
        "lm": small_lm(),
        "acceptance": rule,
        "top_k": 8,
        "max_new_tokens": 30,
        "layout": layout,
    }
    together = generate(model_of("llama"), PROMPTS[:9], strategy, **options)
    for prompt, result in zip(PROMPTS, together, strict=False):
        alone = generate(model_of("llama"), prompt, strategy, **options)
        assert result.token_ids == alone.token_ids


def test_sampling_differs_by_seed_and_by_text():
    def sample(prompt: list[int], seed: int) -> list[int]:
        rule = Sampled(1.5, seed=seed)
        return generate(model_of("gpt2"), prompt, "greedy", acceptance=rule).token_ids

    assert sample([1, 2], 1) == sample([1, 2], 1)
    assert sample([1, 2], 1) != sample([1, 2], 2)
    twice = generate(model_of("gpt2"), [[1, 2]] * 2, "greedy", acceptance=Sampled(1.5, seed=[1, 2]))
    assert [result.token_ids for result in twice] == [sample([1, 2], 1), sample([1, 2], 2)]


def test_sampling_noise_makes_better_drafts(monkeypatch):
    """Knowing the target's noise, as many draft tokens keep more."""
    from lattice_bpd.decode.drafters import tree as tree_drafter

    def kept() -> int:
        results = generate(
            model_of("trained"), PROMPTS, drafter=TreeDrafter(small_lm(), top_k=8, max_nodes=12),
            acceptance=Sampled(1.2, seed=3), max_new_tokens=40,
        )  # fmt: skip
        return sum(sum(result.stats.accept_lengths) for result in results)

    with_noise = kept()
    monkeypatch.setattr(tree_drafter, "target_noise", lambda *_: None)
    assert with_noise > 1.2 * kept()


def test_sampling_gains_of_each_kind_of_drafts():
    from lattice_bpd_kim2024.evaluate import compare_sampling

    gains = compare_sampling(
        model_of("trained"), small_lm(), PROMPTS[:2], PROMPTS[2:6], temperatures=(0.5, 1.0),
        max_nodes=8, max_new_tokens=12,
    )  # fmt: skip
    assert [(gain.temperature, gain.name) for gain in gains[:2]] == [
        (0.5, "independent heads, sampled"),
        (0.5, "rescored, sampled"),
    ]
    assert len(gains) == 12
    for gain in gains:
        assert (gain.texts, gain.tokens) == (4, 48)
        assert gain.same_texts == (4 if gain.rule == "sampled" else None)
        assert 1.0 <= gain.block_efficiency <= 1.0 + gain.accept_length
    with pytest.raises(ValueError, match="found 0 prompts and 1 to tune on"):
        compare_sampling(model_of("trained"), small_lm(), PROMPTS[:1], [])
