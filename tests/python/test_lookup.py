"""Prompt lookup as a drafter: worked matches, batches, and greedy's output."""

import gc

import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import VOCAB, looping_text, model_of, plain_greedy
from lattice_bpd.decode import DecodeStats, decode
from lattice_bpd.decode.drafters import LookupDrafter
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.decode.state.sequence import DecodeState


def state_of(tokens, limit=50):
    model = DraftingModel(model_of("llama"))
    state = DecodeState(model, list(tokens), len(tokens), torch.zeros(32), limit, DecodeStats())
    state.update_limits()
    return state


def draft_of(drafter, state):
    """The tokens of the draft and the length of its match."""
    (tree,) = drafter.propose([state])
    if tree is None:
        return None
    assert tree.exact_token == state.tokens[-1]
    assert tree.parents == list(range(-1, len(tree) - 1))
    assert tree.log_probs is None
    return tree.token_ids[1:], tree.kind


def test_the_longest_suffix_wins_up_to_max_ngram():
    text = [1, 2, 3, 9, 2, 3, 7, 1, 2, 3]
    assert draft_of(LookupDrafter(3, draft_length=4), state_of(text)) == ([9, 2, 3, 7], 3)
    assert draft_of(LookupDrafter(2, draft_length=3), state_of(text)) == ([7, 1, 2], 2)
    assert draft_of(LookupDrafter(3, min_ngram=3, draft_length=1), state_of(text)) == ([9], 3)
    assert draft_of(LookupDrafter(2, min_ngram=2), state_of([1, 2, 3, 2])) is None
    assert draft_of(LookupDrafter(), state_of([1, 2, 3])) is None
    assert draft_of(LookupDrafter(draft_length=9), state_of(text, limit=4)) == ([9, 2, 3], 3)
    four_heads = draft_of(LookupDrafter(draft_length=None), state_of(text))
    assert four_heads == ([9, 2, 3, 7], 3)


def test_an_index_follows_its_own_text():
    drafter, first, second = LookupDrafter(draft_length=2), state_of([4, 5, 6, 4]), state_of([4, 4])
    assert draft_of(drafter, first) == ([5, 6], 1)
    assert draft_of(drafter, second) == ([4, 4], 1)
    first.tokens += [7, 4]
    assert draft_of(drafter, first) == ([7, 4], 1)
    del first.tokens[3:]  # a text that was cut is read anew
    first.tokens += [5]
    assert draft_of(drafter, first) == ([6, 5], 1)
    del first
    gc.collect()
    assert len(drafter._indexes) == 1


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral", "gemma2", "trained"])
def test_lookup_is_lossless_alone_and_in_a_batch(kind):
    prompts = [looping_text(30)[:12].tolist(), [5, 6, 5], [7]]
    wanted = [plain_greedy(model_of(kind), prompt, 20) for prompt in prompts]
    base = model_of(kind).base
    alone = [decode(base, prompt, LookupDrafter(), max_new_tokens=20) for prompt in prompts]
    together = decode(base, prompts, LookupDrafter(), max_new_tokens=20)
    assert [result.token_ids for result in alone] == wanted
    assert [result.token_ids for result in together] == wanted
    lengths = [result.stats.accept_lengths for result in alone]
    assert [result.stats.accept_lengths for result in together] == lengths


def test_a_loop_is_drafted_deeper_than_the_heads():
    cycle = [index * 5 % VOCAB for index in range(VOCAB + 2)]
    result = decode(model_of("trained"), cycle, LookupDrafter(draft_length=12), max_new_tokens=14)
    assert result.stats.block_efficiency > 2.0
    assert max(result.stats.accept_lengths) > model_of("trained").num_slots


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_ngram": 0}, "max_ngram 0; expected 1 or more"),
        ({"max_ngram": 2, "min_ngram": 3}, "min_ngram is 3, max_ngram 2"),
        ({"draft_length": 0}, "draft_length is 0; expected 1 or more"),
    ],
)
def test_bad_sizes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LookupDrafter(**options)
