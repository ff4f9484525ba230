"""Batches, streaming, heads of any kind: every sequence comes out as if decoded alone."""

from __future__ import annotations

import functools
from itertools import chain

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from transformers import GenerationConfig, StaticCache

from blockwise_models import VOCAB, model_of, plain_greedy, small_lm
from lattice_bpd import NGramLM
from lattice_bpd.decode import (
    DecodeStats,
    Drafter,
    DraftWarning,
    PBestDrafter,
    TreeDrafter,
    decode,
    generate,
)
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.verify import CausalLMTarget, PrefixTree

pytestmark = pytest.mark.filterwarnings("ignore:Katz")  # corpora made up for tests

STATIC = GenerationConfig(cache_implementation="static")
SMALL = {"top_k": 6, "num_drafts": 5, "max_nodes": 14, "alpha": 0.5}


def options_of(name: str) -> dict:
    lm = None if name.endswith("_0gram") else small_lm()
    return {"drafter": DraftConfig(name.removesuffix("_0gram"), **SMALL), "lm": lm}


def random_prompts(count: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB, rng.integers(1, 16)).tolist() for _ in range(count)]


@functools.cache
def greedy_of(kind: str, prompt: tuple[int, ...], count: int) -> list[int]:
    return plain_greedy(model_of(kind), list(prompt), count)


@pytest.mark.parametrize("strategy", ["bpd", "p_best", "tree"])
def test_a_batch_takes_as_many_calls_as_its_slowest_sequence(strategy):
    prompts = random_prompts(6, seed=2)
    options = {**options_of(strategy), "max_new_tokens": 24}
    together = generate(model_of("trained"), prompts, **options)
    alone = [generate(model_of("trained"), prompt, **options) for prompt in prompts]
    for result, expected in zip(together, alone, strict=True):
        assert result.token_ids == expected.token_ids
        assert result.stats.tokens == 24
        # Drafts use the same slots except near the end, so the numbers of calls are almost equal.
        assert abs(result.stats.target_calls - expected.stats.target_calls) <= 1
        assert sum(result.stats.accept_histogram) == result.stats.target_calls - 1
    merged = DecodeStats()
    for result in together:
        merged.merge(result.stats)
    assert merged.own_seconds <= merged.seconds["total"]


def test_trees_cut_calls_more_than_lists_of_as_many_tokens():
    prompts = random_prompts(30, seed=4)
    calls = {}
    for name, sizes in (("p_best", {"num_drafts": 3}), ("tree", {"max_nodes": 12})):
        options = {**options_of(name), **sizes, "max_new_tokens": 24}
        results = generate(model_of("trained"), prompts, **options)
        calls[name] = sum(result.stats.target_calls for result in results)
    assert calls["tree"] <= calls["p_best"]


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


def test_a_drafter_takes_a_config_or_options_by_name():
    prompts = random_prompts(3, seed=7)
    options = {"lm": small_lm(), "max_new_tokens": 12}
    config = DraftConfig("p_best", **SMALL)
    used = {name: SMALL[name] for name in ("top_k", "num_drafts", "alpha")}
    named = generate(model_of("trained"), prompts, "p_best", **used, **options)
    for other in (
        generate(model_of("trained"), prompts, config, **options),
        generate(model_of("trained"), prompts, DraftConfig("p_best"), **used, **options),
        decode(model_of("trained"), prompts, PBestDrafter(small_lm(), config), max_new_tokens=12),
    ):
        for result, expected in zip(other, named, strict=True):
            assert result.token_ids == expected.token_ids
            assert result.stats.accept_lengths == expected.stats.accept_lengths
    with pytest.raises(TypeError, match=r"^generate: max_nodes given with a drafter"):
        generate(model_of("trained"), [1], PBestDrafter(None), max_nodes=3)
    with pytest.raises(TypeError, match=r"drafter is 3; expected the name of a strategy"):
        generate(model_of("trained"), [1], 3)


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


class Fixed:
    """No subclass, no `observe`: just something that proposes."""

    def __init__(self, make) -> None:
        self.make = make

    def propose(self, states):
        return [self.make(state) for state in states]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda state: PrefixTree.from_drafts(state.tokens[-1], [[VOCAB]]),
            ValueError,
            f"Fixed proposed token id {VOCAB}; expected 0..{VOCAB - 1}",
        ),
        (
            lambda state: PrefixTree.from_nodes(state.tokens[-1], [-2], [-1], 1),
            ValueError,
            "token id -2",
        ),
        (lambda _: [1, 2], TypeError, "returned a list with a list; expected PrefixTree or None"),
    ],
)
def test_bad_proposals(make, error, message):
    with pytest.raises(error, match=message):
        decode(model_of("llama"), [5, 6], Fixed(make))


@pytest.mark.parametrize(
    ("proposed", "error", "message"),
    [
        (None, TypeError, r"Own\.propose returned a NoneType; expected a list with a PrefixTree"),
        (PrefixTree([6, 1], [-1, 0]), TypeError, "returned a PrefixTree; expected a list"),
        ([None, None], ValueError, "returned a list of 2 for 1 sequences"),
        ([], ValueError, "returned a list of 0 for 1 sequences"),
    ],
)
def test_a_proposal_is_a_list_with_one_entry_for_each_text(proposed, error, message):
    class Own:
        def propose(self, _states):
            return proposed

    with pytest.raises(error, match=message):
        decode(model_of("llama"), [5, 6], Own())


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
    import copy

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
    with pytest.raises(TypeError, match="heads is a list; expected a callable"):
        generate(model_of("llama").base, [1], heads=[1])
    with pytest.raises(TypeError, match="model is a str; expected a causal LM"):
        generate("gpt2", [1])
    with pytest.raises(TypeError, match="LlamaModel has no output embedding"):
        generate(model_of("llama").base.base_model, [1])
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
