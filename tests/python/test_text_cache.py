"""Several turns: a KV cache that the next call continues changes nothing but the tokens read."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from transformers import DynamicCache, StaticCache

import seq2seq_models
import target_models
from blockwise_models import CACHE_NAME, VOCAB, looping_text, model_of, pad, random_model
from lattice_bpd import DraftConfig, NGramLM
from lattice_bpd.decode import CustomGenerate, generate
from lattice_bpd.verify.acceptance import Sampled
from planted_drafts import plain_continuation

EOS, NEW, TURNS = 7, 6, 10
pytestmark = pytest.mark.filterwarnings("ignore:Katz")  # corpora made up for tests
KINDS = ("llama", "mistral", "gemma2")  # without a limit of 64 positions


def user(turn: int, seed: int = 0) -> list[int]:
    """The tokens of a user in a turn."""
    rng = np.random.default_rng([turn, seed])
    return rng.integers(1, VOCAB, rng.integers(1, 9)).tolist()


class Reads:
    """Tokens that a model's forward reads."""

    def __init__(self, base) -> None:
        self.base, self.counts = base, []

    def __enter__(self):
        def count(_module, arguments, named):
            ids = named.get("input_ids", arguments[0] if arguments else None)
            self.counts.append(int(ids.shape[1]))

        self.handle = self.base.register_forward_pre_hook(count, with_kwargs=True)
        return self

    def __exit__(self, *_error):
        self.handle.remove()


def plain(base, text: list[int], **options) -> list[int]:
    settings = {"max_new_tokens": NEW, "eos_token_id": EOS, "pad_token_id": 0}
    settings["attention_mask"] = torch.ones(1, len(text), dtype=torch.long)
    return plain_continuation(base, text, **settings | options)


@functools.cache
def long_model(kind: str):
    """A target with random weights and positions for a chat."""
    model = copy.deepcopy(random_model(kind))
    model.base.config.max_position_embeddings = 512
    return model


def options_of(kind: str, strategy: str) -> dict:
    heads = None if strategy in ("mixture", "greedy") else long_model(kind).head_logits
    options = {"top_k": 6} if heads is not None else {}
    lm = NGramLM.train([looping_text(2000, seed=1)], 3, vocab_size=VOCAB)
    return {"heads": heads, "lm": lm if strategy in ("tree", "mixture") else None, **options}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", ["tree", "mixture", "greedy"])
def test_a_chat_of_ten_turns(kind, strategy):
    base, history, cache = long_model(kind).base, [], True
    options, expected = options_of(kind, strategy), []
    with Reads(base) as reads:
        for turn in range(TURNS):
            known = len(history)
            history += user(turn)
            reads.counts.clear()
            result = generate(base, history, strategy, cache=cache, max_new_tokens=NEW,
                              stop_token_ids=[EOS], **options)  # fmt: skip
            expected.append((list(history), result.token_ids))
            assert result.text is None
            assert not result.notes
            if turn > 0:  # the last decoded token may not have been read
                assert result.stats.cached_tokens in (known, known - 1)
                assert len(history) - result.stats.cached_tokens in reads.counts
                assert max(reads.counts) <= 65  # a tree of 64 nodes; the text becomes longer
            history += result.token_ids
            assert cache is True or cache is result.cache
            cache = result.cache
    assert [(text, plain(base, text)) for text, _ in expected] == expected
    with Reads(base), pytest.raises(ValueError, match="a model that has changed since"):
        generate(base, history, strategy, cache=cache, **options)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_turns_inside_the_models_own_generate(kind, count):
    """By a cache of the caller, filled in place, and by that of the last output."""
    base = long_model(kind).base
    method = CustomGenerate(long_model(kind).head_logits, DraftConfig("tree", top_k=6))
    settings = {"max_new_tokens": NEW, "eos_token_id": EOS, "pad_token_id": 0, "do_sample": False}
    for given in (DynamicCache(config=base.config), DynamicCache(), None):
        histories: list[list[int]] = [[] for _ in range(count)]
        cache = given
        for turn in range(5):
            for seed, history in enumerate(histories):
                history += user(turn, seed)
            inputs = pad(histories)
            expected = base.generate(**inputs, **settings)
            own = {} if cache is None else {CACHE_NAME: cache}
            output = base.generate(**inputs, **settings, **own, custom_generate=method,
                                   return_dict_in_generate=given is None)  # fmt: skip
            ours = output if given is not None else output.sequences
            assert ours.tolist() == expected.tolist()
            cache = given if given is not None else output[CACHE_NAME]
            for history, result in zip(histories, method.results, strict=True):
                assert (result.stats.cached_tokens > 0) is (turn > 0)
                assert result.cache is cache
                history += result.token_ids


def test_an_edited_history_is_read_from_the_first_difference():
    base, options = long_model("llama").base, options_of("llama", "tree")
    first = [5, 9, 3, 11, 20, 31, 8, 2]
    result = generate(base, first, "tree", cache=True, max_new_tokens=NEW, **options)
    whole = [*first, *result.token_ids]
    changed = copy.deepcopy(result.cache)
    for text, shared in (
        ([*whole, 4], len(whole) - 1),
        ([*whole[:5], 40, *whole[6:], 1], 5),
        (whole[:4], 3),  # the last token is read for its logits
        ([40, *whole], 0),
        ([*first, *result.token_ids, 13], 0),
    ):
        cache = copy.deepcopy(changed)
        again = generate(base, text, "tree", cache=cache, max_new_tokens=NEW, **options)
        assert again.token_ids == plain(base, text, eos_token_id=None)
        if shared:
            assert again.stats.cached_tokens in (shared, shared + 1)
        assert again.cache is cache
    # one cache, two continuations: it holds the last one
    for text in ([*whole, 4], [*whole, 21], [*whole, 4]):
        again = generate(base, text, "tree", cache=result.cache, max_new_tokens=NEW, **options)
        assert again.token_ids == plain(base, text, eos_token_id=None)
        assert again.stats.cached_tokens >= len(whole) - 1


def test_a_stop_token_inside_a_draft_and_other_rules():
    base, prompt = model_of("trained").base, [0, 5, 10, 15, 20, 25]
    heads = model_of("trained").head_logits
    free = generate(base, prompt, heads=heads, max_new_tokens=12)
    for end in dict.fromkeys(free.token_ids):
        result = generate(base, prompt, heads=heads, cache=True, stop_token_ids=[end])
        text = [*prompt, *result.token_ids, 3, 4]
        again = generate(base, text, heads=heads, cache=result.cache, max_new_tokens=8)
        assert again.token_ids == plain(base, text, eos_token_id=None, max_new_tokens=8)
        assert again.stats.cached_tokens >= len(text) - 3
        rule = Sampled(0.9, seed=4)
        alone = generate(base, text, heads=heads, acceptance=rule, max_new_tokens=8)
        sampled = generate(
            base, text, heads=heads, acceptance=rule, max_new_tokens=8, cache=result.cache,
            logprobs=2,
        )  # fmt: skip
        assert sampled.token_ids == alone.token_ids
    certified = generate(base, text, heads=heads, cache=result.cache, certificate=True)
    assert certified.certificate.verdict == "lossless"


def test_caches_that_cannot_be_continued_are_refused():
    base, prompt = long_model("llama").base, [5, 9, 3, 11]

    def continued(cache, ids=prompt, model=base):
        return generate(model, ids, "mixture", cache=cache, max_new_tokens=3)

    def filled():
        return continued(True).cache

    cache = filled()
    with pytest.raises(ValueError, match="generate: cache was filled by another model"):
        continued(cache, model=random_model("llama", seed=1).base)
    cropped, extended, unknown = filled(), filled(), DynamicCache()
    cropped.crop(-2)
    base(torch.tensor([[4, 5]]), **{CACHE_NAME: extended})
    base(torch.tensor([[5, 9]]), **{CACHE_NAME: unknown})
    for wrong, message in (
        (cropped, r"cache has 4 positions and was changed .* 6 tokens"),
        (extended, "cache has 8 positions and was changed"),
        (unknown, "cache holds 2 positions of unknown tokens"),
        (StaticCache(config=base.config, max_cache_len=9), "is a StaticCache; expected True"),
    ):
        with pytest.raises(ValueError, match=message):
            continued(wrong)
    with pytest.raises(ValueError, match="CustomGenerate: cache holds 2 positions of unknown"):
        base.generate(torch.tensor([prompt]), **{CACHE_NAME: unknown}, max_new_tokens=3,
                      custom_generate=CustomGenerate(drafter="mixture"))  # fmt: skip
    with pytest.raises(ValueError, match="cache holds 1 texts, found 2 prompts"):
        continued(cache, [prompt, prompt])
    with pytest.raises(ValueError, match="found 1 caches for 2 prompts"):
        continued([cache], [prompt, prompt])
    with pytest.raises(TypeError, match=r"generate: cache is a .*; expected True"):
        continued(False)
    with torch.no_grad():
        changed = copy.deepcopy(base)
        old = continued(True, model=changed).cache
        next(changed.parameters()).mul_(1.5)
    with pytest.raises(ValueError, match="a model that has changed since"):
        continued(old, model=changed)
    source = seq2seq_models.build("bart")
    with pytest.raises(ValueError, match="is an encoder-decoder, whose texts begin anew"):
        continued(True, [4, 5, 6], source)


@pytest.mark.parametrize(
    "kind", ["mamba", "qwen3_next", "lfm2", "gpt_neo", "llama4", "gemma4", "mlp_first"]
)
def test_targets_of_other_kinds(kind):
    """Where a cache cannot be continued, each turn reads its whole text, and a note says so."""
    model, history, cache = target_models.build_target(kind), [], True
    recurrent = kind in ("mamba", "qwen3_next", "lfm2")
    for turn in range(4):
        history += user(turn)
        result = generate(model, history, "mixture", cache=cache, max_new_tokens=NEW,
                          stop_token_ids=[], attention_mask=[1] * len(history))  # fmt: skip
        assert result.token_ids == plain(model, history, eos_token_id=None)
        assert (result.stats.cached_tokens > 0) is (turn > 0 and not recurrent)
        assert bool(result.notes) is recurrent
        history += result.token_ids
        cache = result.cache
