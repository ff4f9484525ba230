"""Scores, logits and log probabilities are those of plain decoding."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from blockwise_models import VOCAB, model_of
from lattice_bpd import DraftConfig
from lattice_bpd.decode import CustomGenerate, generate
from lattice_bpd.verify.acceptance import Rejection, Sampled

EOS, NEW = 7, 18
BOTH = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
SETTINGS = {
    "plain": {},
    "processed": {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "suppress_tokens": [3, 5]},
    "ends": {"eos_token_id": [EOS, 12, 30], "pad_token_id": 0, "min_new_tokens": 2},
}


def batch(count: int = 3, seed: int = 1) -> dict[str, torch.Tensor]:
    """Prompts of several lengths, padded on the left."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCAB, (count, 9), generator=generator)
    mask = (torch.arange(9) >= torch.tensor([[0], [4], [6]])[:count]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def method(kind: str, strategy: str = "tree", **options) -> CustomGenerate:
    config = DraftConfig(strategy, top_k=6, max_nodes=12, num_drafts=4)
    return CustomGenerate(model_of(kind).head_logits, config, **options)


def close(ours: torch.Tensor, plain: torch.Tensor) -> bool:
    return ours.dtype == plain.dtype and torch.allclose(ours, plain, atol=2e-4)


def assert_same_output(ours, plain, own: CustomGenerate) -> None:
    """All fields of two outputs of `generate`; padding is not read, and has NaN."""
    lengths = torch.tensor([len(result.token_ids) for result in own.results])
    assert type(ours) is type(plain)
    assert ours.sequences.tolist() == plain.sequences.tolist()
    for name in ("scores", "logits"):
        steps, expected = getattr(ours, name), getattr(plain, name)
        if expected is None:
            assert steps is None
            continue
        assert type(steps) is tuple
        assert len(steps) == len(expected) == ours.sequences.shape[1] - 9
        for index, (step, other) in enumerate(zip(steps, expected, strict=True)):
            assert step.shape == other.shape
            assert close(step[index < lengths], other[index < lengths])
            assert bool(step[index >= lengths].isnan().all())


@pytest.mark.parametrize("kind", ["trained", "llama", "mistral", "gemma2"])
@pytest.mark.parametrize("case", SETTINGS)
@pytest.mark.parametrize("count", [1, 3])
def test_scores_and_logits_of_custom_generate(kind, case, count):
    base, inputs = model_of(kind).base, batch(count)
    settings = {"max_new_tokens": NEW, "pad_token_id": 0, **SETTINGS[case], **BOTH}
    if case == "ends":
        new = base.generate(**inputs, max_new_tokens=NEW, pad_token_id=0)[:, 9:]
        others = set(new[1:].flatten().tolist()) - {int(new[0, -1])}
        settings["eos_token_id"] = next(n for n in [*new[0, 2:].tolist(), 1] if n not in others)
    plain = base.generate(**inputs, **settings)
    if case == "ends" and count > 1 and kind != "gemma2":  # else no padding is tested
        new = plain.sequences[:, 9:]
        assert any(int((row != 0).sum()) < new.shape[1] for row in new)
    for options in ({"layout": "rows"}, {"layout": "auto"}, {"strategy": "greedy"}):
        own = method(kind, **options)
        assert_same_output(base.generate(**inputs, custom_generate=own, **settings), plain, own)
        assert own.results[0].logprobs is None


class Stateful(LogitsProcessor):
    """Its effect grows with its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, _input_ids, scores):
        self.calls += 1
        return scores + self.calls * torch.linspace(-1, 1, VOCAB)


class Unsure(StoppingCriteria):
    """Ends a text at the third token whose best probability is below a half."""

    def __call__(self, _input_ids, scores, **_):
        best = torch.stack(scores).softmax(dim=-1).amax(dim=-1)
        return (best < 0.5).sum(dim=0) >= 3


@pytest.mark.parametrize("count", [1, 3])
def test_processors_and_criteria_of_ones_own(count):
    base, outputs, own = model_of("trained").base, [], method("trained")
    for custom in (None, own):
        outputs.append(
            base.generate(
                **batch(count), custom_generate=custom, logits_processor=[Stateful()],
                stopping_criteria=[Unsure()], max_new_tokens=NEW, eos_token_id=EOS,
                pad_token_id=0, **BOTH,
            )
        )  # fmt: skip
    assert_same_output(outputs[1], outputs[0], own)


def assert_logprobs(result, scores: torch.Tensor, count: int) -> None:
    """Compare with (m, V) scores."""
    assert len(result.logprobs) == len(result.token_ids) <= len(scores)
    for row, token, step in zip(result.logprobs, result.token_ids, scores, strict=False):
        expected = step.float().log_softmax(dim=-1)
        best = expected.topk(count)
        assert list(row) == [*best.indices.tolist(), *({token} - set(best.indices.tolist()))]
        values = expected[list(row)]
        assert torch.allclose(torch.tensor(list(row.values())), values, atol=2e-4)


@pytest.mark.parametrize("kind", ["trained", "llama", "mistral"])
@pytest.mark.parametrize("case", SETTINGS)
def test_logprobs_of_generate(kind, case):
    base, inputs = model_of(kind).base, batch()
    config = GenerationConfig(**SETTINGS[case])
    for layout in ("rows", "auto"):
        results = generate(
            base, **inputs, heads=model_of(kind).head_logits, logprobs=4, layout=layout,
            generation_config=config, max_new_tokens=NEW, max_nodes=12,
        )  # fmt: skip
        for number, result in enumerate(results):
            row = {name: values[number : number + 1] for name, values in inputs.items()}
            plain = base.generate(**row, generation_config=config, max_new_tokens=NEW, **BOTH)
            assert plain.sequences[0, 9:].tolist() == result.token_ids
            assert_logprobs(result, torch.cat(plain.scores), 4)


@pytest.mark.parametrize("rule", [Sampled, Rejection])
def test_logprobs_of_samples(rule):
    base, prompt = model_of("llama").base, batch()["input_ids"][0]
    acceptance = rule(0.7, top_k=9, top_p=0.8, seed=3)
    options = {"heads": model_of("llama").head_logits, "acceptance": acceptance}
    result = generate(base, prompt, "sampled", logprobs=3, max_new_tokens=NEW, **options)
    silent = generate(base, prompt, "sampled", max_new_tokens=NEW, **options)
    assert silent.token_ids == result.token_ids
    text = torch.cat([prompt, torch.tensor(result.token_ids)])[None]
    warpers = LogitsProcessorList(
        [TemperatureLogitsWarper(0.7), TopKLogitsWarper(9), TopPLogitsWarper(0.8)]
    )
    scores = warpers(text, base(text[:, :-1]).logits[0, 8:])
    for row, token, step in zip(result.logprobs, result.token_ids, scores, strict=True):
        expected = step.log_softmax(dim=-1)
        assert token in row
        values = torch.tensor(list(row.values()))
        assert torch.allclose(values, expected[list(row)], atol=2e-4)
        assert torch.allclose(values[:3], expected.topk(3).values, atol=2e-4)
