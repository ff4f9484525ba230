"""Sampling: the output has the target's distribution, and with a seed it is plain sampling's."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from blockwise_models import VOCAB, model_of, small_lm
from lattice_bpd import DraftConfig, NGramLM
from lattice_bpd.decode import CustomGenerate, TreeDrafter, generate
from lattice_bpd.decode.drafters import MixtureDrafter, SampledTreeDrafter
from lattice_bpd.decode.drafters import tree as sampled_drafter
from lattice_bpd.verify import Rejection, Sampled
from lattice_bpd.verify.acceptance import TopKMatch
from lattice_bpd.verify.acceptance.warp import Warp
from lattice_bpd.verify.greedy import DraftCandidates
from planted_drafts import PlantedDrafts, plain_continuation
from sampled_sequences import assert_distribution, check_sequences, tiny_model
from test_generate_settings import VOCAB as NUM_TOKENS
from test_generate_settings import model_with

pytestmark = pytest.mark.filterwarnings("ignore:Katz")  # corpora made up for tests

RULES = (Sampled, Rejection)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.5}, "temperature is -0.5; expected a number above 0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_p": 0.0}, "top_p is 0.0"),
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


def test_texts_of_one_seed_are_sampled_independently():
    """From a flat distribution, other prompts sample other tokens at the same position."""
    flat = torch.zeros(1000)
    samples = [Sampled(seed=3).start(0, [prompt]).choose(flat, None) for prompt in range(20)]
    assert len(set(samples)) > 15
    selector = Sampled(seed=3).start(0, [1])  # and so does each position of a text
    assert len({selector.choose(flat, None) for _ in range(20)}) > 15


def test_each_step_samples_new_drafts(monkeypatch):
    seeds: list[int] = []
    sample = sampled_drafter.sample_tree

    def note(*arguments, **options):
        seeds.extend(options["seed"])
        return sample(*arguments, **options)

    monkeypatch.setattr(sampled_drafter, "sample_tree", note)
    model, rule = model_of("trained"), Rejection(1.2, seed=4)
    generate(
        model.base, [[1, 2, 3], [4, 5, 6]], "sampled", heads=model.heads, acceptance=rule,
        lm=small_lm(), top_k=6, max_nodes=8, max_new_tokens=16,
    )  # fmt: skip
    assert len(set(seeds)) == len(seeds) > 6  # of every text in every step


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
@pytest.mark.parametrize("impossible", [0, 3000])
def test_top_p_that_is_met_exactly_keeps_no_token_more(kept, impossible):
    logits = torch.full((4 + impossible,), -math.inf)
    logits[:4] = 2.5  # 1/4 each, exactly
    warped = Warp(top_p=kept / 4).apply(logits)
    assert np.isfinite(warped).nonzero()[0].tolist() == list(range(kept))  # ties: smaller ids
    wanted = TopPLogitsWarper(kept / 4)(None, logits[None])[0]
    assert int(wanted.isfinite().sum()) == kept


PROMPTS = [np.random.default_rng(number).integers(0, VOCAB, 3 + number % 9).tolist()
           for number in range(12)]  # fmt: skip


@pytest.mark.parametrize("strategy", ["tree", "p_best", "bpd", "sampled", "mixture"])
@pytest.mark.parametrize(
    "options", [{"temperature": 1.0}, {"temperature": 0.6, "top_p": 0.9}, {"top_k": 8}]
)
def test_sampling_with_a_seed_is_plain_sampling(strategy, options):
    rule = Sampled(**options, seed=11)
    model, calls, tokens = model_of("trained"), 0, 0
    for prompt in PROMPTS[:6]:
        plain = generate(model.base, prompt, "greedy", acceptance=rule, max_new_tokens=40)
        result = generate(
            model.base, prompt, DraftConfig(strategy, top_k=8), heads=model.heads, lm=small_lm(),
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
    model = model_of("llama")
    options = {
        "heads": model.heads,
        "lm": small_lm(),
        "acceptance": rule,
        "top_k": 8,
        "max_new_tokens": 30,
        "layout": layout,
    }
    together = generate(model.base, PROMPTS[:9], strategy, **options)
    for prompt, result in zip(PROMPTS, together, strict=False):
        alone = generate(model.base, prompt, strategy, **options)
        assert result.token_ids == alone.token_ids


IDS = torch.tensor([[5, 6, 7]])
SAMPLERS = {
    "top_k": {"top_k": 5},
    "all": {"temperature": 1.5, "top_k": 12, "top_p": 0.9, "min_p": 0.05},
    "penalty": {"temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.4},
    "typical": {"typical_p": 0.7},
}


def captured_distribution(model, options) -> np.ndarray:
    """What transformers' own processors make of the first token's logits."""
    kept = []

    def keep(_model, input_ids, logits_processor, **_):
        kept.append(logits_processor)
        return input_ids

    model.generate(IDS, custom_generate=keep, do_sample=True, max_new_tokens=1, **options)
    with torch.no_grad():
        logits = model(IDS).logits[:, -1].float()
    return torch.softmax(kept[0](IDS, logits)[0].double(), -1).numpy()


@pytest.mark.parametrize("case", SAMPLERS)
def test_the_first_token_has_the_distribution_of_plain_sampling(case):
    options = {"top_k": 0, **SAMPLERS[case]}
    model = model_with()
    wanted = captured_distribution(model, options)
    rows = 1500
    torch.manual_seed(7)
    method = CustomGenerate(drafter="greedy")
    output = model.generate(
        IDS.expand(rows, -1), attention_mask=torch.ones(rows, 3, dtype=torch.long),
        custom_generate=method, do_sample=True, max_new_tokens=1, **options,
    )[:, -1]  # fmt: skip
    assert_distribution(np.bincount(output.numpy(), minlength=NUM_TOKENS), wanted)
    assert {result.acceptance for result in method.results} == {"sampled"}


@pytest.mark.parametrize("seed", range(4))
def test_warp_keeps_the_tokens_that_the_warpers_of_transformers_keep(seed):
    rng = np.random.default_rng(seed)
    for _ in range(60):
        logits = torch.tensor(rng.normal(0, 2, (1, 50)), dtype=torch.float32)
        temperature, top_p = float(rng.uniform(0.3, 2)), float(rng.uniform(0.2, 0.99))
        top_k, min_p = int(rng.integers(1, 60)), float(rng.uniform(0.001, 0.5))
        warpers = LogitsProcessorList([
            TemperatureLogitsWarper(temperature), TopKLogitsWarper(top_k),
            TopPLogitsWarper(top_p), MinPLogitsWarper(min_p),
        ])  # fmt: skip
        wanted = warpers(torch.zeros(1, 1, dtype=torch.long), logits.clone())[0].numpy()
        warped = Warp(temperature, top_k, top_p, min_p).apply(logits[0])
        np.testing.assert_array_equal(np.isinf(warped), np.isinf(wanted))
        np.testing.assert_allclose(warped, wanted, rtol=1e-6)


def test_torchs_seed_decides_and_drafts_do_not():
    model = model_with(repetition_penalty=1.1)
    options = {"do_sample": True, "temperature": 0.5, "top_p": 0.95, "max_new_tokens": 24}

    def sample(method, seed=3):
        torch.manual_seed(seed)
        return model.generate(IDS, custom_generate=method, **options)[0].tolist()

    first = sample(CustomGenerate(drafter="greedy"))
    method = CustomGenerate(drafter=PlantedDrafts(first[3:], NUM_TOKENS))
    assert sample(method) == first
    assert method.results[0].stats.block_efficiency > 2.0
    assert sample(CustomGenerate(drafter="mixture")) == first
    assert sample(CustomGenerate(drafter="greedy"), seed=4) != first
    torch.manual_seed(3)
    config = GenerationConfig(**options)
    result = generate(model, IDS[0].tolist(), "greedy", generation_config=config)
    assert (result.token_ids, result.acceptance) == (first[3:], "sampled")
    rule = TopKMatch(2)
    result = generate(model, IDS[0], "greedy", generation_config=config, acceptance=rule)
    assert result.acceptance == "top_k"


def test_greedy_stays_greedy_and_other_rules_are_refused():
    model = model_with(do_sample=True)
    method = CustomGenerate(drafter="greedy")
    output = model.generate(IDS, custom_generate=method, do_sample=False, max_new_tokens=12)
    assert output[0, 3:].tolist() == plain_continuation(model, [5, 6, 7], max_new_tokens=12)
    with pytest.raises(ValueError, match="do_sample=True, but the rule 'top_k' does not sample"):
        model.generate(
            IDS, custom_generate=CustomGenerate(drafter="greedy", acceptance=TopKMatch(2)),
            max_new_tokens=4,
        )  # fmt: skip
    rule = Rejection(seed=1)
    method = CustomGenerate(drafter="greedy", acceptance=rule)
    model.generate(IDS, custom_generate=method, max_new_tokens=4)
    assert method.results[0].acceptance == "rejection"
    several = GenerationConfig(do_sample=True, num_return_sequences=2)
    with pytest.raises(ValueError, match=r"^generate: num_return_sequences=2 cannot be honored"):
        generate(model, IDS[0], "greedy", generation_config=several)
