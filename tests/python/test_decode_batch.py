"""Batches, streaming, heads of any kind: every sequence comes out as if decoded alone."""

from __future__ import annotations

import functools
from itertools import chain

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from transformers import StaticCache
from transformers.generation.streamers import BaseStreamer

from blockwise_models import ARCHITECTURES, POSITIONS, VOCAB, looping_text, model_of, plain_greedy
from lattice_bpd import Drafts, DraftTree, NGramLM
from lattice_bpd.decode import (
    DecodeStats,
    Drafter,
    LatticeDrafter,
    TreeDrafter,
    decode,
    decode_batch,
    generate,
    generate_batch,
)
from lattice_bpd.verify import CausalLMTarget

pytestmark = pytest.mark.filterwarnings("ignore:Katz")  # corpora made up for tests

SMALL = {"top_k": 6, "num_drafts": 5, "max_nodes": 14, "alpha": 0.5}
STRATEGIES = ["greedy", "bpd", "ngram", "p_best", "p_best_0gram", "tree", "tree_0gram", "oracle"]


@functools.cache
def small_lm() -> NGramLM:
    return NGramLM.train([looping_text(2000, seed=1)], 3, vocab_size=VOCAB)


def options_of(name: str) -> dict:
    lm = None if name.endswith("_0gram") else small_lm()
    return {"strategy": name.removesuffix("_0gram"), "lm": lm, **SMALL}


def draw(count: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB, rng.integers(1, 16)).tolist() for _ in range(count)]


@functools.cache
def greedy_of(kind: str, prompt: tuple[int, ...], count: int) -> list[int]:
    return plain_greedy(model_of(kind), list(prompt), count)


@pytest.mark.parametrize("form", ["tree", "rows"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", [*ARCHITECTURES, "trained"])
def test_every_strategy_is_lossless_alone_and_in_batches(kind, strategy, form):
    prompts = draw(8, seed=1)
    wanted = [greedy_of(kind, tuple(prompt), 18) for prompt in prompts]
    options = {**options_of(strategy), "form": form, "max_new_tokens": 18}
    together = generate_batch(model_of(kind), prompts, **options)
    assert [found.token_ids for found in together] == wanted
    for prompt, expected in zip(prompts[:2], wanted, strict=False):
        assert generate(model_of(kind), prompt, **options).token_ids == expected


@pytest.mark.parametrize("strategy", ["bpd", "p_best", "tree"])
def test_a_batch_takes_as_many_calls_as_its_slowest_sequence(strategy):
    prompts = draw(6, seed=2)
    options = {**options_of(strategy), "max_new_tokens": 24}
    together = generate_batch(model_of("trained"), prompts, **options)
    alone = [generate(model_of("trained"), prompt, **options) for prompt in prompts]
    for found, expected in zip(together, alone, strict=True):
        assert found.token_ids == expected.token_ids
        assert found.stats.tokens == 24
        # Drafts look at the same slots but near the end, so calls are all but equal.
        assert abs(found.stats.target_calls - expected.stats.target_calls) <= 1
        assert sum(found.stats.accept_histogram) == found.stats.target_calls - 1
    merged = DecodeStats()
    for found in together:
        merged.merge(found.stats)
    assert merged.own_seconds <= merged.seconds["total"]


@pytest.mark.parametrize("kind", ["gpt2", "mistral"])
def test_limits_and_stop_tokens_end_each_sequence_by_itself(kind):
    # the second has positions for 5 more tokens only
    prompts = [*draw(3, seed=3), [1] * (POSITIONS - 4)]
    wanted = [greedy_of(kind, tuple(p), min(20, POSITIONS - len(p) + 1)) for p in prompts]
    found = generate_batch(model_of(kind), prompts, **options_of("tree"), max_new_tokens=20)
    assert [f.token_ids for f in found] == wanted
    assert [f.finish for f in found] == ["length"] * 3 + ["positions"]
    stop = wanted[0][5]
    found = generate_batch(
        model_of(kind), prompts, **options_of("tree"), max_new_tokens=20, stop_token_ids=[stop]
    )
    for result, whole in zip(found, wanted, strict=True):
        cut = whole.index(stop) + 1 if stop in whole else len(whole)
        assert result.token_ids == whole[:cut]
        assert (result.finish == "stop_token") == (stop in whole)


def test_trees_cut_calls_more_than_lists_of_as_many_tokens():
    prompts = draw(30, seed=4)
    calls = {}
    for name, sizes in (("p_best", {"num_drafts": 3}), ("tree", {"max_nodes": 12})):
        options = {**options_of(name), **sizes, "max_new_tokens": 24}
        found = generate_batch(model_of("trained"), prompts, **options)
        calls[name] = sum(result.stats.target_calls for result in found)
    assert calls["tree"] <= calls["p_best"]


def test_a_plain_causal_lm_and_any_callable_as_heads():
    model, prompt = model_of("llama"), [3, 8, 13]
    wanted = greedy_of("llama", tuple(prompt), 16)
    asked = []

    def heads(hidden):
        asked.append(tuple(hidden.shape))
        return model.head_logits(hidden)

    found = generate(model.base, prompt, heads=heads, lm=small_lm(), max_new_tokens=16)
    assert found.token_ids == wanted
    assert set(asked) == {(1, 32)}
    assert found.stats.verified_tokens > 0
    two = generate_batch(model.base, [prompt, [5]], heads=heads, max_new_tokens=16)
    assert two[0].token_ids == wanted
    assert (2, 32) in asked
    assert generate(model.base, torch.tensor([prompt]), "greedy", max_new_tokens=16).token_ids == (
        wanted
    )


class Recorder(BaseStreamer):
    def __init__(self) -> None:
        self.texts: list[list[int]] = []
        self.ended = 0

    def put(self, value):
        self.texts.append(value.flatten().tolist())

    def end(self):
        self.ended += 1


def test_streamers_get_the_prompt_and_then_every_token_once():
    streamer, prompt = Recorder(), [3, 8, 13]
    found = generate(
        model_of("trained"), prompt, **options_of("tree"), streamer=streamer, max_new_tokens=20
    )
    assert streamer.texts[0] == prompt
    assert streamer.texts[1:] == [[token] for token in found.token_ids]  # as model.generate does
    assert streamer.ended == 1
    with pytest.raises(ValueError, match="a streamer takes one text, found 2 prompts"):
        generate_batch(model_of("trained"), [prompt, prompt], streamer=streamer)
    assert streamer.ended == 2  # who waits for the text is not left waiting


class Echo(Drafter):
    """Proposes what came last; remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[list[int]] = []

    def propose(self, state):
        ids = np.array([[state.tokens[-3:]]], np.int32)
        return Drafts(ids, np.zeros((1, 1), np.float32), np.ones(1, np.int32))

    def observe(self, accepted):
        self.told.append(list(accepted))


def test_drafters_of_ones_own_need_no_heads_and_observe_what_is_kept():
    drafter = Echo()
    found = decode(model_of("trained").base, [3, 8, 13], drafter, max_new_tokens=20)
    assert found.token_ids == greedy_of("trained", (3, 8, 13), 20)
    assert list(chain.from_iterable(drafter.told)) == found.token_ids
    assert [len(told) - 1 for told in drafter.told[1:]] == found.stats.accept_lengths
    prompts = draw(3, seed=5)
    drafters = [Echo() for _ in prompts]
    together = decode_batch(model_of("trained").base, prompts, drafters, max_new_tokens=20)
    for result, own in zip(together, drafters, strict=True):
        assert list(chain.from_iterable(own.told)) == result.token_ids
    with pytest.raises(ValueError, match="Echo observes what is accepted, so 2 prompts cannot"):
        decode_batch(model_of("trained").base, [[1], [2]], Echo())
    with pytest.raises(ValueError, match="2 drafters for 1 prompts"):
        decode_batch(model_of("trained").base, [[1]], [Echo(), Echo()])


class Fixed:
    """No subclass, no `observe`: just something that proposes."""

    def __init__(self, proposal) -> None:
        self.proposal = proposal

    def propose(self, _state):
        return self.proposal


def test_any_tree_is_lossless():
    rng = np.random.default_rng(0)
    for size in (1, 5, 40):
        parents = np.array([[int(rng.integers(-1, node)) for node in range(size)]])
        tree = DraftTree(
            rng.integers(0, VOCAB, (1, size)), parents, None, None, np.array([size]), None, None
        )
        for form in ("tree", "rows"):
            found = decode(model_of("llama"), [5, 6], Fixed(tree), form=form, max_new_tokens=12)
            assert found.token_ids == greedy_of("llama", (5, 6), 12)


@pytest.mark.parametrize(
    ("proposal", "error", "message"),
    [
        (Drafts(np.array([[[VOCAB]]]), None, np.array([1])), ValueError, f"token id {VOCAB}"),
        (
            [[1, 2]],
            TypeError,
            "proposed a list; expected Drafts, a DraftTree",
        ),
    ],
)
def test_bad_proposals(proposal, error, message):
    with pytest.raises(error, match=message):
        decode(model_of("llama"), [5, 6], Fixed(proposal))


def test_a_static_cache_gives_the_same_tokens(monkeypatch):
    sizes = []
    original = StaticCache.update

    def update(self, keys, *args, **options):
        sizes.append(keys.shape[2])
        return original(self, keys, *args, **options)

    monkeypatch.setattr(StaticCache, "update", update)
    for kind in ("gpt2", "llama"):
        for prompt in draw(4, seed=6):
            sizes.clear()
            found = generate(
                model_of(kind), prompt, **options_of("tree"), max_new_tokens=16, static_cache=True
            )
            assert found.token_ids == greedy_of(kind, tuple(prompt), 16)
            assert set(sizes[2:]) == {SMALL["max_nodes"] + 1}  # one shape for every verifying call
    with pytest.raises(ValueError, match="a static cache holds one text"):
        generate_batch(model_of("llama"), [[1], [2]], static_cache=True)
    with pytest.raises(ValueError, match="cannot be rolled back"):
        generate(model_of("mistral"), [1, 2], static_cache=True)


@pytest.mark.slow
def test_a_compiled_target_meets_one_shape():
    import copy

    model = copy.deepcopy(model_of("llama"))
    shapes = torch._dynamo.utils.counters["stats"]
    torch._dynamo.reset()
    model.base.base_model.compile(backend="eager")
    prompt = [3, 8, 13]
    options = {**options_of("tree"), "max_new_tokens": 24, "static_cache": True}
    assert generate(model, prompt, **options).token_ids == greedy_of("llama", tuple(prompt), 24)
    graphs = shapes["unique_graphs"]
    assert generate(model, prompt, **options).token_ids == greedy_of("llama", tuple(prompt), 24)
    assert shapes["unique_graphs"] == graphs  # nothing is compiled again
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        (lambda hidden: hidden, r"logits of shape \(1, 32\)"),
        (lambda hidden: hidden.new_zeros(1, 2, VOCAB + 1), f"a vocabulary of {VOCAB + 1}"),
        (lambda hidden: hidden.new_zeros(1, 0, VOCAB), "one slot or more"),
        (lambda hidden: hidden.new_full((1, 2, VOCAB), float("nan")), "NaN"),
        (None, "the model has no heads; give heads="),
    ],
)
def test_bad_heads(heads, message):
    with pytest.raises(ValueError, match=message):
        generate(model_of("llama").base, [1, 2], heads=heads, max_new_tokens=8)


def test_bad_models_and_batches():
    with pytest.raises(TypeError, match="heads is a list; expected a callable"):
        generate(model_of("llama").base, [1], heads=[1])
    with pytest.raises(TypeError, match="model is a str; expected a causal LM"):
        generate("gpt2", [1])
    with pytest.raises(TypeError, match="LlamaModel has no output embedding"):
        generate(model_of("llama").base.base_model, [1])
    with pytest.raises(ValueError, match="there is no prompt"):
        generate_batch(model_of("llama"), [])
    with pytest.raises(ValueError, match=r"prompt 1 has shape \(0,\)"):
        generate_batch(model_of("llama"), [[1], []])
    lm = NGramLM.train([[1, 2, 3, 1, 2]], 2, vocab_size=VOCAB + 1)
    for drafter in (LatticeDrafter(lm), TreeDrafter(lm)):
        with pytest.raises(ValueError, match=f"LM has a vocabulary of {VOCAB + 1}"):
            decode(model_of("llama"), [1], drafter)


def test_prompts_that_do_not_fit_say_so(monkeypatch):
    model = model_of("llama")

    def full(*_args, **_options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    monkeypatch.setattr(model.base, "forward", full)
    with pytest.raises(MemoryError, match=r"read 2 prompts of 3 tokens .*9 GiB.*fewer at once"):
        generate_batch(model, [[1, 2, 3], [1]], "greedy")


def test_logits_that_a_model_caps_are_its_own():
    # Gemma 2 caps logits behind the output embedding: hidden states alone would not tell.
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
