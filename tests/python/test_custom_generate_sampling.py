"""`CustomGenerate` with do_sample=True samples from the distribution of `generate`."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from lattice_bpd.decode import CustomGenerate
from lattice_bpd.decode.huggingface.sampling_settings import ProcessedSampling
from lattice_bpd.verify import Rejection
from lattice_bpd.verify.acceptance import TopKMatch
from lattice_bpd.verify.acceptance.sampling import SampledSelector
from lattice_bpd.verify.acceptance.warp import Warp
from lattice_bpd.verify.greedy import NO_CANDIDATES
from planted_drafts import PlantedDrafts, plain_continuation
from test_generate_settings import VOCAB, model_with

PROMPT = torch.tensor([[5, 6, 7]])
SAMPLERS = {
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.2},
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

    model.generate(PROMPT, custom_generate=keep, do_sample=True, max_new_tokens=1, **options)
    with torch.no_grad():
        logits = model(PROMPT).logits[:, -1].float()
    return torch.softmax(kept[0](PROMPT, logits)[0].double(), -1).numpy()


@pytest.mark.parametrize("case", SAMPLERS)
def test_the_first_token_has_the_distribution_of_plain_sampling(case):
    options = {"top_k": 0, **SAMPLERS[case]}
    model = model_with()
    wanted = captured_distribution(model, options)
    rows = 1500
    torch.manual_seed(7)
    method = CustomGenerate(drafter="greedy")
    output = model.generate(
        PROMPT.expand(rows, -1), attention_mask=torch.ones(rows, 3, dtype=torch.long),
        custom_generate=method, do_sample=True, max_new_tokens=1, **options,
    )[:, -1]  # fmt: skip
    counts = np.bincount(output.numpy(), minlength=VOCAB)
    assert counts[wanted == 0].sum() == 0
    likely = wanted * rows >= 5
    expected = np.append(wanted[likely], wanted[~likely].sum()) * rows
    seen = np.append(counts[likely], counts[~likely].sum())
    expected, seen = expected[expected > 0], seen[expected > 0]
    chi_square = float(((seen - expected) ** 2 / expected).sum())
    freedom = max(1, len(expected) - 1)
    # 5 standard deviations of chi-square, by Wilson and Hilferty
    bound = freedom * (1 - 2 / (9 * freedom) + 5 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert chi_square < bound
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
        return model.generate(PROMPT, custom_generate=method, **options)[0].tolist()

    first = sample(CustomGenerate(drafter="greedy"))
    method = CustomGenerate(drafter=PlantedDrafts(first[3:], VOCAB))
    assert sample(method) == first
    assert method.results[0].stats.block_efficiency > 2.0
    assert sample(CustomGenerate(drafter="mixture")) == first
    assert sample(CustomGenerate(drafter="greedy"), seed=4) != first


def test_drafters_know_temperature_and_noise():
    selector = ProcessedSampling(0.5, seed=3).start(0, [1, 2])
    assert isinstance(selector, SampledSelector)
    assert selector.warp.temperature == 0.5
    # the logits are warped already, and are sampled from unchanged
    logits = torch.full((5,), -20.0)
    logits[2] = 20.0
    assert selector.choose(logits, NO_CANDIDATES) == 2
    flat = torch.tensor([0.0, -float("inf"), 0.0, -float("inf"), 0.0])
    assert {ProcessedSampling(0.01, seed=n).start(0, []).choose(flat, NO_CANDIDATES)
            for n in range(60)} == {0, 2, 4}  # fmt: skip


def test_greedy_stays_greedy_and_other_rules_are_refused():
    model = model_with(do_sample=True)
    method = CustomGenerate(drafter="greedy")
    output = model.generate(PROMPT, custom_generate=method, do_sample=False, max_new_tokens=12)
    assert output[0, 3:].tolist() == plain_continuation(model, [5, 6, 7], max_new_tokens=12)
    with pytest.raises(ValueError, match="do_sample=True, but the rule 'top_k' does not sample"):
        model.generate(
            PROMPT, custom_generate=CustomGenerate(drafter="greedy", acceptance=TopKMatch(2)),
            max_new_tokens=4,
        )  # fmt: skip
    rule = Rejection(seed=1)
    method = CustomGenerate(drafter="greedy", acceptance=rule)
    model.generate(PROMPT, custom_generate=method, max_new_tokens=4)
    assert method.results[0].acceptance == "rejection"
