"""The decoding loop: counts, statistics, drafters of one's own, and what is refused."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import HEADS, POSITIONS, VOCAB, looping_text, model_of, plain_greedy
from lattice_bpd import NGramLM
from lattice_bpd.decode import DecodeStats, PBestDrafter, decode, generate
from lattice_bpd.decode.drafters import OracleDrafter
from lattice_bpd.verify import PrefixTree

pytestmark = pytest.mark.filterwarnings("ignore:Katz")  # corpora made up for tests

PROMPT = [3, 8, 13]


class FixedDrafter:
    """Proposes the drafts that the test says; remembers the states that it was given."""

    def __init__(self, make) -> None:
        self.make, self.slots, self.contexts = make, [], []

    def propose(self, states):
        self.slots += [state.num_slots for state in states]
        self.contexts += [list(state.tokens) for state in states]
        drafts = [self.make(state) for state in states]
        return [
            None if rows is None else PrefixTree.from_drafts(state.tokens[-1], rows)
            for rows, state in zip(drafts, states, strict=True)
        ]


def test_merged_calls_are_m_over_k_plus_one():
    # A perfect drafter: the prompt's call gives 1 token, each of the others H + 1 = 5.
    wanted = plain_greedy(model_of("gpt2"), PROMPT, 40)

    def perfect(state):
        done = len(state.tokens) - len(PROMPT)
        return [wanted[done : done + state.num_slots]]

    result = decode(model_of("gpt2"), PROMPT, FixedDrafter(perfect), max_new_tokens=36)
    assert result.token_ids == wanted[:36]
    assert result.stats.target_calls == 1 + 35 // HEADS
    assert result.stats.accept_lengths == [HEADS - 1] * 7
    assert result.stats.block_efficiency == 36 / 8


def test_drafter_sees_the_exact_token_and_the_longest_draft():
    drafter = FixedDrafter(lambda _: None)
    result = decode(model_of("gpt2"), PROMPT, drafter, max_new_tokens=6)
    # 1 token from the prompt's call; with r tokens left only r - 1 drafts can be of use
    assert drafter.slots == [4, 3, 2, 1]  # 5 left: min(H, 4) .. 2 left: 1; 1 left: not called
    assert drafter.contexts[0] == [*PROMPT, result.token_ids[0]]
    assert result.stats.target_calls == 6


def test_repeats_count_the_exact_token_as_first_position():
    stats = DecodeStats()
    stats.add_repeats(*PrefixTree.from_drafts(7, [[7, 9, 9, 4], [9, 9, 9, 9]]).count_repeats())
    assert (stats.repeats, stats.neighbours, stats.repeat_share) == (2, 4, 0.5)
    stats.merge(stats_of_one_call())
    assert (stats.repeat_share, stats.target_calls, stats.tokens) == (0.5, 1, 3)
    assert stats.seconds == {"verify": 0.5}


def stats_of_one_call() -> DecodeStats:
    return DecodeStats(target_calls=1, tokens=3, accept_lengths=[2], seconds={"verify": 0.5})


STAGES = ["prompt", "heads", "top_k", "rescore", "verify", "target", "total"]


def test_stage_times_are_given():
    lm = NGramLM.train([looping_text(500)], 2, vocab_size=VOCAB)
    stats = generate(model_of("gpt2"), PROMPT, "p_best", lm=lm, max_new_tokens=8).stats
    assert sorted(stats.seconds) == sorted(STAGES)
    assert all(value > 0.0 for value in stats.seconds.values())
    assert stats.tokens_per_second == pytest.approx(8 / stats.seconds["total"])


def test_stage_times_add_up(monkeypatch):
    """A call of the target or of the heads takes a second, all else takes no time."""
    now, model, lm = (
        [0.0],
        model_of("gpt2"),
        NGramLM.train([looping_text(500)], 2, vocab_size=VOCAB),
    )
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def tick(*_: Any) -> None:
        now[0] += 1.0

    hooks = [part.register_forward_hook(tick) for part in (model.base.transformer, model.heads)]
    try:
        stats = generate(model, PROMPT, "p_best", lm=lm, max_new_tokens=8).stats
    finally:
        for hook in hooks:
            hook.remove()
    seconds = {**stats.seconds}
    assert seconds.pop("total") == now[0] == sum(seconds.values())
    assert seconds["target"] == stats.target_calls - 1  # the first call reads the prompt
    assert 0.0 < seconds["heads"] <= seconds["target"]
    assert seconds["prompt"] >= 1.0  # more where the target is tried for the first time
    assert seconds["top_k"] == seconds["rescore"] == 0.0


def test_prompts_may_be_tensors_and_arrays():
    wanted = plain_greedy(model_of("gpt2"), PROMPT, 4)
    for prompt in (torch.tensor(PROMPT), np.array(PROMPT), tuple(PROMPT)):
        assert generate(model_of("gpt2"), prompt, "bpd", max_new_tokens=4).token_ids == wanted


def test_oracle_takes_the_targets_tokens_that_are_in_the_lattice():
    model = model_of("gpt2")
    wanted = plain_greedy(model, PROMPT, 12)
    result = decode(model, PROMPT, OracleDrafter(wanted, top_k=VOCAB), max_new_tokens=11)
    # k = V: the lattice holds everything, so each call gives H + 1 tokens
    assert result.stats.accept_lengths == [4, 4]
    assert result.token_ids == wanted[:11]


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "one token or more"),
        ([[[1, 2]]], {}, r"shape \(1, 2\)"),
        ([1], {"max_nodes": 0}, "max_nodes is 0"),
        ([1, VOCAB], {}, f"token id {VOCAB}; expected 0..{VOCAB - 1}"),
        ([-1], {}, "token id -1"),
        ([1] * (POSITIONS + 1), {}, f"positions for {POSITIONS}"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens is 0"),
        ([1], {"drafter": "magic"}, "strategy is 'magic'; expected one of greedy, bpd"),
        ([1], {"drafter": "ngram"}, r"needs an LM; give lm=, NGramLM\.load"),
        ([1], {"drafter": "draft_model"}, "needs a draft model; give draft_model="),
        ([1], {"draft_model": object()}, "'p_best' does not use a draft model"),
        ([1], {"drafter": "draft_model", "draft_length": 0}, "draft_length is 0"),
        ([1], {"top_k": VOCAB + 1}, f"expected 1..{VOCAB}"),
        ([1], {"top_k": 0}, "top_k is 0"),
        ([1], {"num_drafts": 0}, "num_drafts is 0"),
        ([1], {"temperature": 0.0}, "temperature is 0.0; expected a finite number above 0"),
        ([1], {"temperature": float("nan")}, "temperature is nan"),
    ],
)
def test_bad_requests_are_refused(prompt, options, message):
    with pytest.raises(ValueError, match=message):
        generate(model_of("gpt2"), prompt, **{"drafter": "p_best", **options})


def test_lm_of_another_vocabulary_is_refused():
    lm = NGramLM.train([[1, 2, 3, 1, 2]], 2, vocab_size=3 * VOCAB)
    with pytest.raises(ValueError, match=f"vocabulary of {3 * VOCAB}, the target one of {VOCAB}"):
        decode(model_of("gpt2"), PROMPT, PBestDrafter(lm))


@pytest.mark.parametrize("strategy", ["greedy", "bpd"])
def test_nan_weights_are_reported(strategy):
    import copy

    model = copy.deepcopy(model_of("gpt2"))
    with torch.no_grad():
        model.output_embedding.weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="NaN"):
        generate(model, PROMPT, strategy)
