"""Decoding with the mixture: the target's own output, its distribution, and sizes that pay."""

from __future__ import annotations

import functools

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import VOCAB, looping_text, model_of
from lattice_bpd import NGramLM
from lattice_bpd.decode import generate
from lattice_bpd.decode.drafters import MixtureDrafter, TextStore
from lattice_bpd.decode.drafters.call_costs import SIZES, CallCosts, ModelCosts

PROMPTS = [
    np.random.default_rng(number).integers(0, VOCAB, 2 + 5 * number).tolist() for number in range(4)
]


@functools.cache
def small_lm(seed: int = 1) -> NGramLM:
    text = looping_text(2000, seed=seed)
    return NGramLM.train([text], 3, vocab_size=VOCAB, smoothing="witten_bell")


def plain(kind: str, prompt: list[int], count: int) -> list[int]:
    base = model_of(kind).base
    output = base.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=count)
    return output[0, len(prompt) :].tolist()


def test_a_chain_is_one_path():
    drafter = MixtureDrafter([small_lm()], heads=True, max_nodes=6)
    for layout, most_leaves in (("chain", 1), ("tree", 6)):
        leaves = []
        propose = drafter.propose

        def watched(states, propose=propose, leaves=leaves):
            trees = propose(states)
            leaves += [tree.count_leaves() for tree in trees]
            return trees

        drafter.propose = watched  # type: ignore[method-assign]
        generate(model_of("trained"), PROMPTS[1], drafter, layout=layout, max_new_tokens=20)
        drafter.propose = propose  # type: ignore[method-assign]
        assert max(leaves) <= most_leaves
        assert layout == "chain" or max(leaves) > 1


def test_a_store_drafts_texts_served_before():
    model, store = model_of("llama"), TextStore(1000)
    wanted = plain("llama", PROMPTS[2], 30)
    calls = []
    for _ in range(2):
        drafter = MixtureDrafter(text=False, store=store, max_nodes=8)
        result = generate(model, PROMPTS[2], drafter, max_new_tokens=30)
        assert result.token_ids == wanted
        calls.append(result.stats.target_calls)
    assert calls[1] < calls[0] // 2
    assert store.token_ids.tolist()[:32] == [*PROMPTS[2], *wanted][:32]


def simulate(slope: float, steps: int = 200) -> tuple[CallCosts, list[int]]:
    """Costs of calls of 1 + slope * n milliseconds, and the sizes that were asked for."""
    costs, asked = CallCosts(), []
    rng = np.random.default_rng(0)
    for step in range(steps):
        size = costs.next_to_measure()
        asked.append(-1 if size is None else size)
        used = int(rng.choice([4, 8, 12])) if size is None else size
        first_is_slow = 2.0 if step == 0 else 1.0
        costs.add(used, 1e-3 * (1.0 + slope * used) * first_is_slow * rng.uniform(0.95, 1.05))
    return costs, asked


@pytest.mark.parametrize("slope", [0.0, 0.02, 0.2])
def test_costs_are_those_of_the_calls(slope):
    costs, asked = simulate(slope)
    times = costs.times(16)
    expected = 1e-3 * (1.0 + slope * np.arange(17))
    np.testing.assert_allclose(times, expected, rtol=0.15 if slope < 0.1 else 0.25)
    assert (np.diff(times) >= 0.0).all()
    assert asked[:2] == [0, 0]
    assert {size for size in asked if size > 0} <= set(SIZES)
    assert asked.count(-1) > 185


def test_interruptions_and_a_slower_machine():
    costs, _ = simulate(0.02)
    before = costs.times(8)
    costs.add(8, 10.0)  # the process was stopped
    np.testing.assert_array_equal(costs.times(8), before)
    for _ in range(200):
        costs.add(8, 2.0 * 1.16e-3)  # everything takes twice as long, other sizes too
    np.testing.assert_allclose(costs.times(8), 2.0 * before, rtol=0.25)


def test_nothing_is_drafted_where_it_does_not_pay(monkeypatch):
    """Each draft token doubles the time of a call: none is verified, and the output is right."""
    costs = ModelCosts()
    monkeypatch.setattr(CallCosts, "times", lambda _self, size: 2.0 ** np.arange(size + 1))
    drafter = MixtureDrafter([small_lm()], heads=True, costs=costs)
    result = generate(model_of("trained"), PROMPTS[1], drafter, max_new_tokens=30)
    assert result.token_ids == plain("trained", PROMPTS[1], 30)
    assert result.stats.verified_tokens <= 2  # trials


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sources": ("heads", "words")}, "found 'words'; expected of heads, lm, text, store"),
        ({"sources": ()}, "sources: found none"),
        ({"sources": ("lm",)}, "sources has 'lm', and there is none; give lm="),
        ({"max_nodes": "many"}, "max_nodes"),
        ({"max_nodes": 0}, "max_nodes is 0"),
        ({"lm": ["x.lm"]}, "lm is a str; expected an NGramLM"),
        ({"lm": [small_lm()] * 5}, "5 LMs; expected at most 4"),
        ({"alpha": 0.5}, "strategy 'mixture' does not use alpha"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        generate(model_of("llama"), PROMPTS[0], max_new_tokens=8, **arguments)
