"""Logits processors in their order, and the strictest of several stopping criteria."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
)

from blockwise_models import VOCAB, model_of
from lattice_bpd.decode import CustomGenerate

PROMPT = torch.tensor([[5, 10, 15, 20]])


class Favor(LogitsProcessor):
    """Adds to the logits of tokens that the last one leads to."""

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores[:, (int(input_ids[0, -1]) * 7 + 3) % VOCAB] += 40.0
        return scores


class Reverse(LogitsProcessor):
    """The best token becomes the worst."""

    def __call__(self, _input_ids, scores):
        return -scores


def run(processors, criteria, *, config: GenerationConfig | None = None, ids=PROMPT) -> list[int]:
    method = CustomGenerate(model_of("trained").head_logits, top_k=6, max_nodes=12)
    output = method(
        model_of("trained").base, ids, LogitsProcessorList(processors),
        StoppingCriteriaList(criteria), config or GenerationConfig(),
    )  # fmt: skip
    return output[0, ids.shape[1] :].tolist()


def test_processors_are_applied_in_their_order():
    base, outputs = model_of("trained").base, []
    for processors in ([Favor(), Reverse()], [Reverse(), Favor()]):
        plain = base.generate(
            PROMPT, logits_processor=LogitsProcessorList(processors), max_new_tokens=12,
            do_sample=False,
        )  # fmt: skip
        method = CustomGenerate(model_of("trained").head_logits, top_k=6, max_nodes=12)
        ours = base.generate(
            PROMPT, logits_processor=LogitsProcessorList(processors), max_new_tokens=12,
            do_sample=False, custom_generate=method,
        )  # fmt: skip
        assert ours.tolist() == plain.tolist()
        outputs.append(ours.tolist())
    assert outputs[0] != outputs[1]  # else this test would say nothing


@pytest.mark.parametrize("processors", [[], [Favor()]], ids=["plain", "processed"])
def test_the_shortest_of_several_lengths_counts(processors):
    for lengths in ([12, 7], [7, 12], [9, 7, 30]):
        assert len(run(processors, [MaxLengthCriteria(n) for n in lengths])) == 3
    # a criterion goes before the config
    assert len(run(processors, [MaxLengthCriteria(9)], config=GenerationConfig(max_length=6))) == 5
    assert len(run(processors, [], config=GenerationConfig(max_length=6))) == 2


@pytest.mark.parametrize("processors", [[], [Favor()]], ids=["plain", "processed"])
def test_the_first_of_any_end_token_ends_the_text(processors):
    whole = run(processors, [MaxLengthCriteria(16)])
    first = next(n for n in range(2, 12) if whole[n] not in whole[:n])
    later = next(n for n in range(first + 1, 12) if whole[n] not in whole[:n])
    for ends in ([whole[later], whole[first]], [whole[first]]):
        criteria = [EosTokenCriteria(end) for end in ends] + [MaxLengthCriteria(16)]
        assert run(processors, criteria) == whole[: first + 1]
    assert run(processors, [EosTokenCriteria(whole[:4]), MaxLengthCriteria(16)]) == whole[:1]
