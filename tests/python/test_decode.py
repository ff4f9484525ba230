"""The decoding loop: counts, times, batches, drafters and heads of one's own, and bad requests."""

from __future__ import annotations

import copy
import functools
import time
from itertools import chain
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from transformers import GenerationConfig, StaticCache

from blockwise_models import (
    POSITIONS,
    VOCAB,
    looping_text,
    model_of,
    plain_greedy,
    small_lm,
)
from lattice_bpd import NGramLM
from lattice_bpd.decode import (
    CustomGenerate,
    DecodeStats,
    Drafter,
    DraftWarning,
    PBestDrafter,
    TreeDrafter,
    decode,
    generate,
)
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.models import BlockwiseLM, SequentialHeads
from lattice_bpd.verify import CausalLMTarget, PrefixTree

pytestmark = pytest.mark.filterwarnings("ignore:Katz")  # corpora made up for tests

PROMPT = [3, 8, 13]
STATIC = GenerationConfig(cache_implementation="static")
SMALL = {"top_k": 6, "num_drafts": 5, "max_nodes": 14, "alpha": 0.5}


def options_of(name: str) -> dict:
    return {"drafter": DraftConfig(name, **SMALL), "lm": small_lm()}


def draft_of(state, tokens) -> PrefixTree:
    return PrefixTree.from_drafts(state.tokens[-1], [tokens])


def random_prompts(count: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB, rng.integers(1, 16)).tolist() for _ in range(count)]


@functools.cache
def greedy_of(kind: str, prompt: tuple[int, ...], count: int) -> list[int]:
    return plain_greedy(model_of(kind), list(prompt), count)


class Fixed:
    """Proposes what the test says; remembers what it was given. No subclass, no `observe`."""

    def __init__(self, make) -> None:
        self.make, self.slots, self.contexts = make, [], []

    def propose(self, states):
        self.slots += [state.num_slots for state in states]
        self.contexts += [list(state.tokens) for state in states]
        return [self.make(state) for state in states]


def test_drafter_sees_the_exact_token_and_the_longest_draft():
    drafter = Fixed(lambda _: None)
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


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "one token or more"),
        ([[[1, 2]]], {}, r"shape \(1, 2\)"),
        ([1], {"max_nodes": 0}, "max_nodes is 0"),
        ([1, VOCAB], {}, f"token id {VOCAB}; expected 0..{VOCAB - 1}"),
        ([-1], {}, "token id -1"),
        ([1] * (POSITIONS + 1), {}, f"positions for {POSITIONS}"),
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


@pytest.mark.parametrize("strategy", ["greedy", "bpd"])
def test_nan_weights_are_reported(strategy):
    model = copy.deepcopy(model_of("gpt2"))
    with torch.no_grad():
        model.output_embedding.weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="NaN"):
        generate(model, PROMPT, strategy)


def test_a_plain_causal_lm_and_any_callable_as_heads():
    model, prompt = model_of("llama"), [3, 8, 13]
    wanted = greedy_of("llama", tuple(prompt), 16)
    hidden_shapes = []

    def heads(hidden):
        hidden_shapes.append(tuple(hidden.shape))
        return model.head_logits(hidden)

    result = generate(model.base, prompt, "tree", heads=heads, lm=small_lm(), max_new_tokens=16)
    assert result.token_ids == wanted
    assert set(hidden_shapes) == {(1, 32)}
    assert result.stats.verified_tokens > 0
    two = generate(model.base, [prompt, [5]], "tree", heads=heads, max_new_tokens=16)
    assert two[0].token_ids == wanted
    assert (2, 32) in hidden_shapes


def test_several_prompts_give_a_list_and_one_prompt_a_result():
    model, prompt = model_of("llama"), [3, 8, 13]
    drafter, wanted = TreeDrafter(small_lm(), max_nodes=14), greedy_of("llama", (3, 8, 13), 8)
    for decoder in (
        functools.partial(generate, model, drafter="greedy", max_new_tokens=8),
        functools.partial(generate, model, drafter=drafter, max_new_tokens=8),
        functools.partial(decode, model, drafter=drafter, max_new_tokens=8),
    ):
        for one in (prompt, tuple(prompt), torch.tensor(prompt), np.array(prompt)):
            assert decoder(one).token_ids == wanted
        for batch in ([prompt], torch.tensor([prompt]), np.array([prompt]), [np.array(prompt)]):
            assert [result.token_ids for result in decoder(batch)] == [wanted]
        for batch in ([prompt] * 2, torch.tensor([prompt] * 2), np.array([prompt] * 2)):
            assert [result.token_ids for result in decoder(batch)] == [wanted] * 2


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
    prompts = random_prompts(3, seed=5)
    drafters = [Echo() for _ in prompts]
    together = decode(model_of("trained").base, prompts, drafters, max_new_tokens=20)
    for result, own in zip(together, drafters, strict=True):
        (observed,) = own.observed.values()
        assert list(chain.from_iterable(observed)) == result.token_ids
    shared = Echo()  # one drafter for all texts observes each of them by itself
    again = decode(model_of("trained").base, prompts, shared, max_new_tokens=20)
    assert [result.token_ids for result in again] == [result.token_ids for result in together]
    for result, observed in zip(again, shared.observed.values(), strict=True):
        assert list(chain.from_iterable(observed)) == result.token_ids
        assert [len(tokens) - 1 for tokens in observed[1:]] == result.stats.accept_lengths
    with pytest.raises(ValueError, match="2 drafters for 1 prompts"):
        decode(model_of("trained").base, [[1]], [Echo(), Echo()])


@pytest.mark.parametrize(
    ("propose", "error", "message"),
    [
        (lambda _: None, TypeError, r"a NoneType; expected a list with a PrefixTree or None"),
        (lambda _: PrefixTree([6, 1], [-1, 0]), TypeError, "a PrefixTree; expected a list"),
        (lambda _: [None, None], ValueError, "a list of 2 for 1 sequences"),
        (lambda _: [], ValueError, "a list of 0 for 1 sequences"),
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
        decode(model_of("llama"), PROMPT, drafter)


def test_a_tree_below_another_token_counts_as_none():
    with pytest.warns(DraftWarning, match="node 0 of the tree is .*expected the exact token"):
        result = decode(
            model_of("llama"),
            [5, 6],
            Fixed(lambda state: PrefixTree([(state.tokens[-1] + 1) % VOCAB, 1], [-1, 0])),
            max_new_tokens=6,
        )
    assert result.token_ids == greedy_of("llama", (5, 6), 6)
    assert result.stats.draft_failures == {"shape": 4}  # the prompt's and the last token need none


def test_a_static_cache_gives_the_same_tokens(monkeypatch):
    sizes = []
    original = StaticCache.update

    def update(self, keys, *args, **options):
        sizes.append(keys.shape[2])
        return original(self, keys, *args, **options)

    monkeypatch.setattr(StaticCache, "update", update)
    for kind in ("gpt2", "llama"):
        for prompt in random_prompts(4, seed=6):
            sizes.clear()
            result = generate(
                model_of(kind), prompt, **options_of("tree"), max_new_tokens=16,
                generation_config=STATIC,
            )  # fmt: skip
            assert result.token_ids == greedy_of(kind, tuple(prompt), 16)
            assert set(sizes[2:]) == {SMALL["max_nodes"] + 1}  # one shape for every verifying call
    sizes.clear()  # several prompts share a cache that grows, as in `CustomGenerate`
    together = generate(
        model_of("llama"), [[1], [2]], "greedy", generation_config=STATIC, max_new_tokens=5
    )
    assert not sizes
    assert [result.token_ids for result in together] == [
        greedy_of("llama", (1,), 5), greedy_of("llama", (2,), 5)
    ]  # fmt: skip
    with pytest.raises(ValueError, match="a static cache holds one text"):
        decode(model_of("llama"), [[1], [2]], TreeDrafter(None), static_cache=True)
    with pytest.raises(ValueError, match="cannot be rolled back"):
        generate(model_of("mistral"), [1, 2], generation_config=STATIC)


@pytest.mark.slow
def test_a_compiled_target_meets_one_shape():
    model = copy.deepcopy(model_of("llama"))
    shapes = torch._dynamo.utils.counters["stats"]
    torch._dynamo.reset()
    model.base.base_model.compile(backend="eager")
    prompt = [3, 8, 13]
    options = {**options_of("tree"), "max_new_tokens": 24, "generation_config": STATIC}
    assert generate(model, prompt, **options).token_ids == greedy_of("llama", tuple(prompt), 24)
    graphs = shapes["unique_graphs"]
    assert generate(model, prompt, **options).token_ids == greedy_of("llama", tuple(prompt), 24)
    assert shapes["unique_graphs"] == graphs  # nothing is compiled again
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        (lambda hidden: hidden, r"logits of shape \(1, 32\)"),
        (lambda hidden: hidden.new_zeros(1, 2, 3 * VOCAB), f"a vocabulary of {3 * VOCAB}"),
        (lambda hidden: hidden.new_zeros(1, 0, VOCAB), "one slot or more"),
        (lambda hidden: hidden.new_full((1, 2, VOCAB), float("nan")), "NaN"),
        (None, "needs draft heads and the model has none; give heads="),
    ],
)
def test_bad_heads(heads, message):
    with pytest.raises(ValueError, match=message):
        generate(model_of("llama").base, [1, 2], "tree", heads=heads, max_new_tokens=8)


def test_bad_models_and_batches():
    for nothing in (np.zeros((0, 3), np.int64), torch.zeros((0, 3), dtype=torch.int64)):
        with pytest.raises(ValueError, match="there is no prompt"):
            generate(model_of("llama"), nothing)
    with pytest.raises(ValueError, match=r"prompt has shape \(0,\)"):
        generate(model_of("llama"), [])
    with pytest.raises(ValueError, match=r"prompt 1 has shape \(0,\)"):
        generate(model_of("llama"), [[1], []])
    lm = NGramLM.train([[1, 2, 3, 1, 2]], 2, vocab_size=3 * VOCAB)
    for drafter in (PBestDrafter(lm), TreeDrafter(lm)):
        with pytest.raises(ValueError, match=f"LM has a vocabulary of {3 * VOCAB}"):
            decode(model_of("llama"), [1], drafter)


def test_prompts_that_do_not_fit_say_so(monkeypatch):
    model = model_of("llama")

    def full(*_args, **_options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    monkeypatch.setattr(model.base, "forward", full)
    with pytest.raises(MemoryError, match=r"read 2 prompts of 3 tokens .*9 GiB.*fewer at once"):
        generate(model, [[1, 2, 3], [1]], "greedy")


def test_logits_that_a_model_caps_are_its_own():
    # Gemma 2 caps logits after the output embedding, which hidden states do not show.
    model, prompt = model_of("gemma2"), [3, 8, 13]
    target = CausalLMTarget(model)
    with torch.inference_mode():
        first, cache = target.read_prompts(torch.tensor([prompt]))
        later = target(torch.tensor([[5]]), cache)
        wanted = model.base(input_ids=torch.tensor([[*prompt, 5]])).logits[0]
        bare = model.output_embedding(later.hidden)
    torch.testing.assert_close(first.logits[0, -1], wanted[2], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(later.logits[0, -1], wanted[3], rtol=1e-4, atol=1e-4)
    assert later.logits.abs().max() <= 1.0 < bare.abs().max()


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
