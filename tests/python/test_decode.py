"""The decoding loop: counts, batches, drafters and heads of one's own, options, bad requests."""

from __future__ import annotations

import copy
import functools
from itertools import chain
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from transformers import GenerationConfig

from blockwise_models import HEADS, VOCAB, model_of, plain_greedy, random_prompts, small_lm
from lattice_bpd import DraftConfig
from lattice_bpd.decode import (
    CustomGenerate,
    DecodeStats,
    Drafter,
    DraftError,
    DraftWarning,
    TreeDrafter,
    decode,
    generate,
)
from lattice_bpd.decode.huggingface.generate import read_config
from lattice_bpd.draft.config import STRATEGIES
from lattice_bpd.verify import PrefixTree
from planted_drafts import plain_continuation

pytestmark = pytest.mark.filterwarnings("ignore:Katz")  # corpora made up for tests

PROMPT = [3, 8, 13]


def draft_of(state, tokens) -> PrefixTree:
    return PrefixTree.from_drafts(state.tokens[-1], [tokens])


@functools.cache
def greedy_of(kind: str, prompt: tuple[int, ...], count: int) -> list[int]:
    return plain_greedy(model_of(kind), list(prompt), count)


class Fixed:
    """Proposes what the test says. No subclass, no `observe`."""

    def __init__(self, make) -> None:
        self.make = make

    def propose(self, states):
        return [self.make(state) for state in states]


class Echo(Drafter):
    """Proposes what came last; remembers what it observed of each text."""

    def __init__(self) -> None:
        self.observed: dict[int, list[list[int]]] = {}  # by id of the state

    def propose(self, states):
        return [PrefixTree.from_drafts(s.tokens[-1], [s.tokens[-3:]]) for s in states]

    def observe(self, state, token_ids):
        assert state.tokens[-len(token_ids) :] == list(token_ids)  # they are appended already
        self.observed.setdefault(id(state), []).append(list(token_ids))


def test_drafters_of_ones_own_need_no_heads_and_observe_what_is_kept():
    drafter = Echo()
    output = decode(model_of("trained").base, [3, 8, 13], drafter, max_new_tokens=20)
    assert output.token_ids == greedy_of("trained", (3, 8, 13), 20)
    (observed,) = drafter.observed.values()
    assert list(chain.from_iterable(observed)) == output.token_ids
    assert [len(tokens) - 1 for tokens in observed[1:]] == output.stats.accept_lengths
    prompts, shared = random_prompts(3, seed=5), Echo()  # observes each text by itself
    together = decode(model_of("trained").base, prompts, shared, max_new_tokens=20)
    found = {tuple(chain.from_iterable(one)): one for one in shared.observed.values()}
    assert len(found) == 3
    for result in together:
        observed = found[tuple(result.token_ids)]
        assert [len(tokens) - 1 for tokens in observed[1:]] == result.stats.accept_lengths
    with pytest.raises(ValueError, match="2 drafters for 1 prompts"):
        decode(model_of("trained").base, [[1]], [Echo(), Echo()])


@pytest.mark.parametrize(
    ("propose", "error", "message"),
    [
        (lambda _: None, TypeError, r"a NoneType; expected a list with a PrefixTree or None"),
        (lambda _: [None, None], ValueError, "a list of 2 for 1 sequences"),
        (lambda _: [[1, 2]], TypeError, "a list with a list; expected PrefixTree or None"),
        (lambda s: [draft_of(s[0], [VOCAB])], ValueError, f"token id {VOCAB}; expected 0..47"),
        (
            lambda s: [PrefixTree.from_nodes(s[0].tokens[-1], [-2], [-1], 1)], ValueError,
            "token id -2",
        ),
    ],
)  # fmt: skip
def test_bad_proposals(propose, error, message):
    drafter = Fixed(None)
    drafter.propose = propose
    with pytest.raises(error, match=rf"Fixed(\.propose returned|\ proposed) {message}"):
        decode(model_of("llama").base, PROMPT, drafter)


def test_a_tree_below_another_token_counts_as_none():
    with pytest.warns(DraftWarning, match="node 0 of the tree is .*expected the exact token"):
        result = decode(
            model_of("llama").base,
            [5, 6],
            Fixed(lambda state: PrefixTree([(state.tokens[-1] + 1) % VOCAB, 1], [-1, 0])),
            max_new_tokens=6,
        )
    assert result.token_ids == greedy_of("llama", (5, 6), 6)
    assert result.stats.draft_failures == {"shape": 4}  # the prompt's and the last token need none


class Failing:
    """Drafts what it likes, but for every third step, where it raises."""

    def __init__(self, error):
        self.error, self.steps = error, 0

    def propose(self, states):
        self.steps += 1
        if self.steps % 3 == 0:
            raise self.error
        return [PrefixTree.from_drafts(state.tokens[-1], [[1, 2]]) for state in states]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FloatingPointError("NaN in the logits"), "nan"),
        (MemoryError("no memory"), "memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "memory"),
        (IndexError("no such row"), "shape"),
        (DraftError("tired", "not today"), "tired"),
    ],
)
def test_a_failed_draft_costs_one_step(error, kind):
    drafter = Failing(error)
    with pytest.warns(DraftWarning, match=f"Failing drafted nothing .{kind}: ") as caught:
        result = decode(model_of("llama").base, PROMPT, drafter, max_new_tokens=20)
    assert len(caught) == 1  # of many failures
    assert result.token_ids == plain_greedy(model_of("llama"), PROMPT, 20)
    assert result.stats.draft_failures == {kind: drafter.steps // 3}


@pytest.mark.parametrize("prompts", [[[1, 5]], [[1], [2]]])
def test_names_of_caches_of_transformers_change_nothing(prompts):
    for name in ("static", "dynamic"):
        config = GenerationConfig(cache_implementation=name)
        found = generate(
            model_of("llama").base, prompts, "greedy", generation_config=config, max_new_tokens=5
        )
        for prompt, one in zip(prompts, found, strict=True):
            assert one.token_ids == greedy_of("llama", tuple(prompt), 5)


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
    assert received == states
    assert {len(row) for row in received} >= {3}
    for prompt, result in zip(prompts, results, strict=True):
        assert result.token_ids == plain_greedy(model, prompt, 12)


def test_heads_of_an_unknown_number_of_slots_state_it_in_their_first_call():
    model = model_of("trained")

    class Heads:
        num_slots = None

        def read_states(self, states):
            return model.head_logits(torch.stack([state.hidden for state in states]))

    seen = []

    class Watching(TreeDrafter):
        def propose(self, states):
            seen.append((states[0].model.num_slots, states[0].num_slots))
            return super().propose(states)

    result = generate(
        model.base, PROMPT, heads=Heads(), drafter=Watching(None, top_k=4, max_nodes=6),
        max_new_tokens=12,
    )  # fmt: skip
    assert result.token_ids == plain_greedy(model, PROMPT, 12)
    assert result.stats.target_calls < 12
    assert seen[:2] == [(None, 10), (HEADS - 1, HEADS - 1)]


@pytest.mark.parametrize(
    ("layout", "shape"), [("chain", (1, 4)), ("rows", (2, 4)), ("tree", (1, 7)), ("auto", (1, 7))]
)
def test_a_layout_is_the_shape_of_every_verifying_call(layout, shape):
    """Two drafts of three tokens after the exact token; the second is right."""
    model, wanted, shapes = model_of("llama").base, greedy_of("llama", tuple(PROMPT), 24), []

    def two(state):
        right = [*wanted[len(state.new_tokens) :], *PROMPT][:3]
        drafts = [[(token + 1) % VOCAB for token in right], right]
        return PrefixTree.from_drafts(state.tokens[-1], drafts)

    generate(model, PROMPT, "greedy", max_new_tokens=2)  # what is read once for a model
    embedding = model.get_input_embeddings()
    handle = embedding.register_forward_hook(
        lambda _module, inputs, _output: shapes.append(tuple(inputs[0].shape))
    )
    result = generate(model, PROMPT, Fixed(two), layout=layout, max_new_tokens=20)
    handle.remove()
    assert result.token_ids == wanted[:20]
    assert shapes.count(shape) >= 4


def test_heads_are_given_the_dtype_of_the_target():
    model = copy.deepcopy(model_of("trained"))
    base = model.base.to(torch.bfloat16)
    assert model.heads.outer_weight.dtype == torch.float32
    result = generate(base, PROMPT, "bpd", heads=model.heads, max_new_tokens=20)
    assert result.token_ids == plain_continuation(base, PROMPT, max_new_tokens=20)
    assert (result.stats.draft_failures, result.stats.block_efficiency > 1.5) == ({}, True)


def test_all_statistics_of_texts_add_up():
    values = {int: 3, float: 0.5, list: [1, 0], dict: {"a": 2, "b": 1}}
    once = DecodeStats()
    for name, value in vars(once).items():
        setattr(once, name, copy.copy(values[type(value)]))
    twice = {int: 6, float: 1.0, list: [1, 0, 1, 0], dict: {"a": 4, "b": 2}}
    total = copy.deepcopy(once)
    total.merge(once)
    assert vars(total) == {name: twice[type(value)] for name, value in vars(once).items()}
    first = DecodeStats()
    first.merge(once)
    assert first == once
    assert (once.relaxed_share, once.block_efficiency) == (1.0, 1.0)
    assert (DecodeStats().relaxed_share, DecodeStats().block_efficiency) == (0.0, 0.0)


VALUES: dict[str, Any] = {
    "top_k": 4, "num_drafts": 3, "max_nodes": 9, "alpha": 0.7, "temperature": 1.5,
    "draft_length": 6, "normalization": "local", "sources": ("text",),
}  # fmt: skip
WITHOUT_LM = [name for name, info in STRATEGIES.items() if not info.uses("lm")]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_options_by_keyword_override_the_config_if_they_are_used(strategy: str) -> None:
    for name, value in VALUES.items():
        for drafter in (strategy, DraftConfig(strategy)):
            if name in STRATEGIES[strategy].options:
                config = read_config("generate", drafter, {name: value})
                assert config == DraftConfig(strategy, **{name: value})
            else:
                message = f"^generate: strategy '{strategy}' does not use {name}; leave it out"
                message += ".*; that of sampling is part of" if name == "temperature" else ""
                with pytest.raises(ValueError, match=message):
                    read_config("generate", drafter, {name: value})


@pytest.mark.parametrize("strategy", WITHOUT_LM)
def test_an_lm_that_is_not_used_is_refused_by_name_and_ignored_with_a_config(strategy: str) -> None:
    message = f"strategy '{strategy}' does not use an LM; leave lm out, or use 'mixture'"
    with pytest.raises(ValueError, match=f"^generate: {message}"):
        generate(model_of("llama").base, PROMPT, strategy, lm=small_lm(), max_new_tokens=8)
    with pytest.raises(ValueError, match=f"^CustomGenerate: {message}"):
        CustomGenerate(drafter=strategy, lm=small_lm())
    model, config = model_of("llama"), DraftConfig(strategy)
    results = [
        generate(model.base, PROMPT, config, heads=model.heads, lm=lm, max_new_tokens=8)
        for lm in (None, small_lm())
    ]
    assert results[0].token_ids == results[1].token_ids
    assert results[0].stats.accept_lengths == results[1].stats.accept_lengths
