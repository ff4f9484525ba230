"""`model.generate(custom_generate=...)` under a constraint."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from blockwise_models import VOCAB, model_of, pad, random_prompts, small_lm
from constraints import acceptor_of
from lattice_bpd import DraftConfig, extensions
from lattice_bpd.decode import CustomGenerate, generate
from lattice_bpd_constraints import Constraint, FstConstraint

END = 7
PROCESSED: dict[str, dict[str, Any]] = {
    "none": {},
    "repetition": {"repetition_penalty": 1.7},
    "no repeated trigram": {"no_repeat_ngram_size": 3},
    "bias": {"sequence_bias": [[[3], -4.0], [[8, 13], 5.0]]},
}


class Forbid(LogitsProcessor):
    """Plain `generate`'s way to obey a constraint."""

    def __init__(self, constraint: Constraint, prompt_length: int) -> None:
        self.constraint, self.start = constraint, prompt_length

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        scores = scores.clone()
        for row, token_ids in zip(scores, input_ids[:, self.start :].tolist(), strict=True):
            if END in token_ids:
                continue
            state: Any = self.constraint.start()
            for token in token_ids:
                state = state.advance(token)
            mask = state.allowed_tokens().copy()
            mask[END] = state.accepting
            row[torch.from_numpy(~mask)] = -float("inf")
        return scores


def words() -> FstConstraint:
    """Three to nine tokens of 8..VOCAB-1, then a 3, repeatedly; it may end after each 3."""
    arcs = [(state, 1 + token, state + 1) for state in range(9) for token in range(8, VOCAB)]
    arcs += [(state, 1 + 3, 0) for state in range(3, 10)]
    return acceptor_of(arcs, {0})


@pytest.mark.parametrize("case", PROCESSED)
@pytest.mark.parametrize("strategy", ["greedy", "bpd", "p_best", "tree", "mixture"])
def test_constrained_output_is_plain_generates_with_a_processor(strategy: str, case: str) -> None:
    model, constraint, rng = model_of("trained"), words(), np.random.default_rng(1)
    config = DraftConfig(strategy, top_k=6, max_nodes=12)
    own = CustomGenerate(model.head_logits, config, lm=small_lm(), constraint=constraint)
    options = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": END, "pad_token_id": 0}
    for count in (1, 1, 3):
        rows = torch.from_numpy(rng.integers(0, VOCAB, (count, 6)))
        inputs: Any = {"input_ids": rows, "attention_mask": torch.ones_like(rows)}
        forbid = LogitsProcessorList([Forbid(constraint, rows.shape[1])])
        wanted = model.base.generate(
            **inputs, logits_processor=forbid, **options, **PROCESSED[case]
        )
        output = model.base.generate(**inputs, custom_generate=own, **options, **PROCESSED[case])
        assert output.tolist() == wanted.tolist()
        assert all(token == END or token >= 8 or token in (0, 3) for token in output[0, 6:])


def test_without_the_distribution_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "find_extensions", lambda _group: {})
    model, constraint = model_of("llama").base, words()
    message = "'constraint' is a feature of .*; pip install lattice-bpd-constraints"
    with pytest.raises(ImportError, match=message):
        generate(model, [1, 2], constraint=constraint)
    method = CustomGenerate(drafter="greedy", constraint=constraint)
    with pytest.raises(ImportError, match=message):
        model.generate(torch.tensor([[1, 2]]), max_new_tokens=4, custom_generate=method)
    assert generate(model, [1, 2], max_new_tokens=4).stats.tokens == 4


class FavorByRow(LogitsProcessor):
    """Favors a token for each row, from a length on."""

    def __init__(self, start: int) -> None:
        self.start = start

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if input_ids.shape[1] >= self.start:
            scores[range(len(scores)), range(11, 11 + len(scores))] += 30.0
        return scores


def test_steps_after_a_row_ended_by_a_constraint_are_compared() -> None:
    arcs = [(step, 1 + token, step + 1) for step in range(9) for token in range(8, VOCAB)]
    chain = acceptor_of([*arcs, *((step, 1 + 3, 9) for step in range(9))], {9})
    method = CustomGenerate(model_of("llama").head_logits, constraint=chain)
    settings: dict[str, Any] = {
        **pad(random_prompts(4, seed=2)), "max_new_tokens": 18, "pad_token_id": 0,
        "custom_generate": method, "sequence_bias": [[[3], 3.0]],
    }  # fmt: skip
    base: Any = model_of("llama").base
    base.generate(**settings)
    lengths = [len(result.token_ids) for result in method.results]
    assert {result.finish for result in method.results} == {"constraint"}
    late = settings["input_ids"].shape[1] + min(lengths) + 1
    assert min(lengths) + 1 < max(lengths)
    with pytest.raises(ValueError, match="FavorByRow cannot be honored"):
        base.generate(**settings, logits_processor=[FavorByRow(late)])
