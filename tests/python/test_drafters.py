"""The inputs of drafters and heads: the options of a strategy, and the exact token."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from blockwise_models import model_of, plain_greedy, small_lm
from lattice_bpd.decode import CustomGenerate, TreeDrafter, decode, generate
from lattice_bpd.models import BlockwiseLM, SequentialHeads

PROMPT = [3, 8, 13]
SIZES = {"top_k": 6, "max_nodes": 10, "alpha": 0.7}


def counts(result) -> tuple[list[int], int]:
    return result.stats.accept_lengths, result.stats.verified_tokens


def test_temperature_shapes_the_tree_wherever_it_is_given():
    model, options = model_of("trained"), {"lm": small_lm(), **SIZES}
    wanted = plain_greedy(model, PROMPT, 30)
    by_drafter = {
        temperature: decode(
            model, PROMPT, TreeDrafter(temperature=temperature, **options), max_new_tokens=30
        )
        for temperature in (0.2, 1.0, 20.0)
    }
    assert len({str(counts(result)) for result in by_drafter.values()}) > 1
    for temperature, expected in by_drafter.items():
        given = {**options, "temperature": temperature}
        method = CustomGenerate(model.head_logits, "tree", **given)
        ids = torch.tensor([PROMPT])
        custom = model.base.generate(ids, custom_generate=method, max_new_tokens=30)
        assert custom[0, 3:].tolist() == wanted
        alone = generate(model, PROMPT, "tree", max_new_tokens=30, **given)
        (batch,) = generate(model, [PROMPT], "tree", max_new_tokens=30, **given)
        for result in (expected, method.results[0], alone, batch):
            assert result.token_ids == wanted
            assert counts(result) == counts(expected)


class Step(nn.Module):
    """Adds the token's embedding to the state; remembers the embeddings of slot 0."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, states, embeddings, slot):
        if slot == 0:
            self.seen.append(embeddings)
        return states + embeddings


def test_heads_in_turn_start_from_the_token_that_processors_chose():
    base, step = model_of("llama").base, Step()
    model = BlockwiseLM(base, heads=SequentialHeads(step, 3, base))
    step.seen.clear()
    options = {"suppress_tokens": plain_greedy(model, PROMPT, 4), "max_new_tokens": 16}
    method = CustomGenerate(model.heads, "bpd")
    output = base.generate(torch.tensor([PROMPT]), custom_generate=method, **options)
    assert output.tolist() == base.generate(torch.tensor([PROMPT]), **options).tolist()
    stats, decoded = method.results[0].stats, method.results[0].token_ids
    ends = [0]  # of each step: the index of its exact token
    for length in stats.accept_lengths:
        ends.append(ends[-1] + length + 1)
    embedded = torch.cat(step.seen)
    expected = [decoded[index] for index in ends if index + 2 < len(decoded)]  # others have no slot
    wanted = base.get_input_embeddings()(torch.tensor(expected))
    assert torch.equal(embedded[-len(expected) :], wanted)


def test_every_row_of_a_batch_gets_its_own_exact_token():
    model, received, states = model_of("trained"), [], []

    def heads(hidden, exact_tokens):
        received.append(exact_tokens.tolist())
        return model.head_logits(hidden)

    class Watching(TreeDrafter):
        def propose(self, states_of_step):
            states.append([state.tokens[-1] for state in states_of_step])
            return super().propose(states_of_step)

    prompts = [PROMPT, [5], [40, 2]]
    drafter = Watching(None, top_k=4, max_nodes=6)
    results = generate(model.base, prompts, heads=heads, drafter=drafter, max_new_tokens=12)
    first, *rest = received  # the first call only determines the number of slots
    assert first == [results[0].token_ids[0]]
    assert rest == states
    assert {len(row) for row in rest} >= {3}
    for prompt, result in zip(prompts, results, strict=True):
        assert result.token_ids == plain_greedy(model, prompt, 12)


def test_callables_without_a_signature_are_called_with_hidden_states_alone():
    model = model_of("llama")
    heads = functools.partial(model.head_logits, exact_tokens=None)
    assert generate(model.base, PROMPT, heads=heads, max_new_tokens=9).token_ids == (
        plain_greedy(model, PROMPT, 9)
    )
