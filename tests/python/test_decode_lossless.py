"""Every strategy returns the output of the target alone, token for token."""

from __future__ import annotations

import functools

import numpy as np
import pytest

pytest.importorskip("torch")

from blockwise_models import POSITIONS, VOCAB, WINDOW, looping_text, model_of, plain_greedy
from lattice_bpd import DraftConfig, NGramLM
from lattice_bpd.decode import generate
from lattice_bpd.draft.config import STRATEGIES

pytestmark = pytest.mark.filterwarnings("ignore:Katz")  # corpora made up for tests

DRAFTING = [name for name in STRATEGIES if name != "greedy"] + ["p_best_0gram"]
BEYOND_HEADS = ["draft_model"]  # tests of their own have more
KINDS = ["gpt2", "llama", "mistral", "gemma2", "trained"]
OPTIONS = {"top_k": 6, "num_drafts": 5, "alpha": 0.5}


@functools.cache
def small_lm() -> NGramLM:
    return NGramLM.train([looping_text(2000, seed=1)], 3, vocab_size=VOCAB)


def decode_with(strategy: str, kind: str, prompt: list[int], **options):
    if strategy == "neural":
        rescorer = {"lm": model_of("gpt2").base}
    elif strategy == "draft_model":
        rescorer = {"draft_model": model_of("trained").base}
    else:
        rescorer = {"lm": None if strategy == "p_best_0gram" else small_lm()}
    length = 4 if strategy == "draft_model" else None
    config = DraftConfig(strategy.removesuffix("_0gram"), **OPTIONS, draft_length=length)
    return generate(model_of(kind), prompt, config, **rescorer, **options)


def prompts(count: int, seed: int, longest: int = 20) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB, rng.integers(1, longest + 1)).tolist() for _ in range(count)]


@functools.cache
def greedy_of(kind: str, prompt: tuple[int, ...], count: int) -> list[int]:
    return decode_with("greedy", kind, list(prompt), max_new_tokens=count).token_ids


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_the_target_alone(kind):
    for prompt in prompts(25, seed=1):
        assert list(greedy_of(kind, tuple(prompt), 20)) == plain_greedy(model_of(kind), prompt, 20)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", DRAFTING)
def test_hundreds_of_prompts(strategy, kind):
    calls = tokens = 0
    for prompt in prompts(15 if strategy in BEYOND_HEADS else 70, seed=2):
        result = decode_with(strategy, kind, prompt, max_new_tokens=24)
        assert result.token_ids == greedy_of(kind, tuple(prompt), 24), prompt
        assert result.stats.tokens == 24
        calls += result.stats.target_calls
        tokens += result.stats.tokens
    assert calls <= tokens
    # "mixture" may find that drafts do not pay
    if kind == "trained" and strategy != "mixture":
        assert tokens / calls > 1.5  # drafts were really accepted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", DRAFTING)
def test_length_limits(strategy, kind):
    for prompt in prompts(4, seed=3):
        whole = greedy_of(kind, tuple(prompt), 20)
        for limit in range(1, 21):
            result = decode_with(strategy, kind, prompt, max_new_tokens=limit)
            assert (result.token_ids, result.finish) == (whole[:limit], "length")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", ["greedy", *DRAFTING])
def test_stop_token_at_every_position(strategy, kind):
    for prompt in prompts(3, seed=4):
        whole = greedy_of(kind, tuple(prompt), 20)
        for index, token in enumerate(whole):
            first = whole.index(token)
            result = decode_with(strategy, kind, prompt, max_new_tokens=20, stop_token_ids=[token])
            assert (result.token_ids, result.finish) == (whole[: first + 1], "stop_token"), index
            assert result.stats.tokens == first + 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", ["greedy", *DRAFTING])
def test_one_token_prompts(strategy, kind):
    for token in range(0, VOCAB, 5):
        result = decode_with(strategy, kind, [token], max_new_tokens=12)
        assert result.token_ids == greedy_of(kind, (token,), 12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", ["greedy", *DRAFTING])
@pytest.mark.parametrize("length", [POSITIONS, POSITIONS - 1, POSITIONS - 3, POSITIONS - 9])
def test_prompts_at_the_position_limit(strategy, kind, length):
    prompt = np.random.default_rng(length).integers(0, VOCAB, length).tolist()
    remaining = POSITIONS - length + 1  # the last token is never read
    result = decode_with(strategy, kind, prompt, max_new_tokens=30)
    assert (len(result.token_ids), result.finish) == (remaining, "positions")
    assert result.token_ids == plain_greedy(model_of(kind), prompt, remaining)
    exact = decode_with(strategy, kind, prompt, max_new_tokens=remaining)
    assert (exact.token_ids, exact.finish) == (result.token_ids, "length")


@pytest.mark.parametrize("kind", ["mistral", "gemma2"])
@pytest.mark.parametrize("layout", ["tree", "rows"])
def test_long_texts_beyond_the_window(layout, kind):
    config = DraftConfig("tree", max_nodes=12, **OPTIONS)
    options = {"lm": small_lm(), "max_new_tokens": 12, "layout": layout}
    texts = [prompt * 3 for prompt in prompts(3, seed=6, longest=16)]
    wanted = [plain_greedy(model_of(kind), text, 12) for text in texts]
    assert max(map(len, texts)) > 2 * WINDOW
    for text, tokens in zip(texts, wanted, strict=True):
        assert generate(model_of(kind), text, config, **options).token_ids == tokens
    results = generate(model_of(kind), texts, config, **options)
    assert [result.token_ids for result in results] == wanted


def test_oracle_is_at_least_as_good_as_any_path_of_its_lattice():
    calls = dict.fromkeys(["bpd", "p_best_0gram", "ngram", "p_best", "oracle"], 0)
    for prompt in prompts(60, seed=5):
        for strategy in calls:
            result = decode_with(strategy, "trained", prompt, max_new_tokens=24)
            calls[strategy] += result.stats.target_calls
    assert calls["oracle"] == min(calls.values())
