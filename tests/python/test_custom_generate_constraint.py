"""`model.generate(custom_generate=...)` under a constraint, with a scorer, and with costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from blockwise_models import VOCAB, model_of, random_model, small_lm
from constraints import acceptor_of
from lattice_bpd import DraftConfig
from lattice_bpd.decode import Constraint, CustomGenerate, FstConstraint
from lattice_bpd.decode.drafters.call_costs import costs_of

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


def test_a_constraint_of_another_vocabulary_is_refused() -> None:
    other = acceptor_of([(0, 2, 0)], {0}, vocab_size=VOCAB + 1)
    with pytest.raises(ValueError, match=f"vocabulary of {VOCAB + 1}, the target one of {VOCAB}"):
        model_of("llama").base.generate(
            torch.tensor([[1, 2]]), max_new_tokens=4,
            custom_generate=CustomGenerate(drafter="greedy", constraint=other),
        )  # fmt: skip


def test_a_scorer_drafts_and_auto_remembers() -> None:
    model, scorer = model_of("trained"), random_model("gpt2").base
    rows = torch.tensor([[3, 8, 13, 18]])
    inputs: Any = {"input_ids": rows, "attention_mask": torch.ones_like(rows)}
    wanted = model.base.generate(**inputs, do_sample=False, max_new_tokens=20).tolist()
    neural = CustomGenerate(model.head_logits, "neural", lm=scorer, top_k=4)
    output = model.base.generate(**inputs, custom_generate=neural, max_new_tokens=20)
    assert output.tolist() == wanted
    assert neural.results[0].stats.seconds["rescore"] > 0.0
    fresh = random_model("llama")
    wanted = fresh.base.generate(**inputs, do_sample=False, max_new_tokens=20).tolist()
    mixture = CustomGenerate(fresh.head_logits, top_k=4)
    for _ in range(9):
        output = fresh.base.generate(**inputs, custom_generate=mixture, max_new_tokens=20)
        assert output.tolist() == wanted
    assert costs_of(fresh.base).of(len(wanted)).times(4).min() > 0.0
