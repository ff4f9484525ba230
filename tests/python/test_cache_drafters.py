"""Drafters with a cache for each sequence: the output stays greedy's, loops take fewer calls."""

from __future__ import annotations

import functools
import gc

import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import VOCAB, looping_text, model_of, plain_greedy
from lattice_bpd import NGramLM
from lattice_bpd.decode import CustomGenerate, PBestDrafter, TreeDrafter, decode, generate
from lattice_bpd.verify import PrefixTree

pytestmark = pytest.mark.filterwarnings("ignore:Katz")  # corpora made up for tests

SIZES = {"top_k": 6, "alpha": 0.7}
PROMPTS = [[3, 8, 13], [5], [40, 2, 40, 2, 40, 2]]


@functools.cache
def small_lm() -> NGramLM:
    return NGramLM.train([looping_text(2000, seed=1)], 3, vocab_size=VOCAB)


@pytest.mark.parametrize("with_lm", [True, False])
@pytest.mark.parametrize("kind", [TreeDrafter, PBestDrafter])
@pytest.mark.parametrize("name", ["trained", "llama"])
def test_cache_output_is_greedy_and_batch_is_as_alone(name, kind, with_lm):
    model, lm = model_of(name), small_lm() if with_lm else None
    shared = kind(lm, ngram_cache=True, **SIZES)
    together = generate(model, PROMPTS, drafter=shared, max_new_tokens=40)
    for prompt, result in zip(PROMPTS, together, strict=True):
        alone = decode(model, prompt, kind(lm, ngram_cache=4, **SIZES), max_new_tokens=40)
        assert result.token_ids == alone.token_ids == plain_greedy(model, prompt, 40)
        assert result.stats.accept_lengths == alone.stats.accept_lengths


def test_cache_of_a_sequence_is_dropped_with_it():
    drafter = TreeDrafter(small_lm(), ngram_cache=True, **SIZES)
    for prompt in PROMPTS:
        decode(model_of("trained"), prompt, drafter, max_new_tokens=8)
    gc.collect()
    assert len(drafter._caches) == 0


@pytest.mark.parametrize("strategy", ["tree", "p_best", "ngram"])
def test_cache_is_an_option_of_generate(strategy):
    model, lm = model_of("trained"), small_lm()
    wanted = plain_greedy(model, PROMPTS[0], 24)
    result = generate(
        model, PROMPTS[0], strategy, lm=lm, ngram_cache=True, max_new_tokens=24, **SIZES
    )
    method = CustomGenerate(model.head_logits, strategy, lm=lm, ngram_cache=True, **SIZES)
    ids = torch.tensor(PROMPTS[:1])
    custom = model.base.generate(ids, custom_generate=method, max_new_tokens=24)
    assert result.token_ids == custom[0, 3:].tolist() == wanted
    assert method.results[0].stats.accept_lengths == result.stats.accept_lengths


def paths_of(tree: PrefixTree) -> list[list[int]]:
    """The draft tokens from the exact token down to each node."""
    paths: list[list[int]] = [[]]
    for token, parent in zip(tree.token_ids[1:], tree.parents[1:], strict=True):
        paths.append([*paths[parent], token])
    return paths


def block_efficiency(period: list[int], cache: bool) -> float:
    """Of drafts for a text that repeats, from heads that know its tokens but not their order."""
    from types import SimpleNamespace

    from lattice_bpd.decode import DecodeState, DecodeStats

    text = period * 12
    logits = torch.zeros(6, VOCAB)
    logits[:, sorted(set(period))] = 1.0
    model = SimpleNamespace(vocab_size=VOCAB, read_heads=lambda _: logits[None])
    prompt = text[: len(period) + 3]
    state = DecodeState(model, list(prompt), len(prompt), torch.zeros(1), 99, DecodeStats())
    state.num_slots = state.max_draft_length = 6
    drafter = TreeDrafter(None, top_k=len(period), max_nodes=18, alpha=1.0, ngram_cache=cache)
    calls = 0
    while len(state.tokens) < len(text) - 7:
        (tree,) = drafter.propose([state])
        wanted = text[len(state.tokens) : len(state.tokens) + 6]
        accepted = 0
        while accepted < 6 and wanted[: accepted + 1] in paths_of(tree):
            accepted += 1
        state.tokens += text[len(state.tokens) : len(state.tokens) + accepted + 1]
        calls += 1
    return (len(state.tokens) - len(prompt)) / calls


def test_cache_raises_block_efficiency_in_a_loop():
    period = [7, 1, 20, 33, 4, 9, 15, 2]
    assert block_efficiency(period, cache=True) > 2 * block_efficiency(period, cache=False)


@pytest.mark.parametrize(
    ("cache", "error", "message"),
    [
        ("yes", TypeError, "ngram_cache is 'yes'; expected True, False or an order"),
        (7, ValueError, r"ngram_cache is 7; expected an order of 1\.\.6"),
        (0, ValueError, r"ngram_cache is 0; expected an order of 1\.\.6"),
    ],
)
def test_cache_options_are_checked(cache, error, message):
    for kind in (TreeDrafter, PBestDrafter):
        with pytest.raises(error, match=f"{kind.__name__}: {message}"):
            kind(None, ngram_cache=cache)
