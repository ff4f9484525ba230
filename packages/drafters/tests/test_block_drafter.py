"""BlockDrafter: cached drafts and a reference in plain loops agree; its caches, and refusals."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from block_drafters import CONFIG, VARIANTS, build_drafter, reference_states
from blockwise_models import VOCAB, build_base
from lattice_bpd_drafters.block_drafter import BlockDrafter
from lattice_bpd_drafters.cache import BlockCache

LENGTH = 23


def texts(count: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids (count, LENGTH) and features."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCAB - 1, (count, LENGTH), generator=generator)
    return ids, torch.randn(count, LENGTH, CONFIG.feature_size, generator=generator)


def fill(drafter: BlockDrafter, cache: BlockCache, features: torch.Tensor, ends: list[int]) -> None:
    """Append up to `ends`, in pieces of different lengths, drafting in between."""
    turn = 0
    while cache.lengths != ends:
        turn += 1
        left = [end - have for end, have in zip(ends, cache.lengths, strict=True)]
        counts = [min(count, 3 + (row + turn) % 4) for row, count in enumerate(left)]
        piece = torch.full((len(ends), max(counts), CONFIG.feature_size), torch.nan)
        for row, (count, have) in enumerate(zip(counts, cache.lengths, strict=True)):
            piece[row, :count] = features[row, have : have + count]
        drafter.append(cache, piece, counts)
        drafter.draft_states(cache, torch.zeros(len(ends), dtype=torch.int64))


def drafted(drafter: BlockDrafter, ids, features, ends, capacity=None) -> torch.Tensor:
    """(B, H, D) after features 0 .. end - 1, with the token at `end` as anchor."""
    cache = drafter.new_cache(len(ends), capacity=capacity)
    fill(drafter, cache, features, ends)
    return drafter.draft_states(cache, ids[torch.arange(len(ends)), torch.tensor(ends)])


@pytest.mark.parametrize("ends", [[17], [17, 17], [6, 19, 11], [0, 12, 1]])
@pytest.mark.parametrize("variant", VARIANTS)
def test_cached_drafts_are_those_of_the_formulas(variant, ends):
    drafter = build_drafter(**VARIANTS[variant])
    ids, features = texts(len(ends))
    states = drafted(drafter, ids, features, ends)
    assert states.shape == (len(ends), drafter.num_slots, CONFIG.hidden_size)
    static = drafted(drafter, ids, features, ends, capacity=24)
    torch.testing.assert_close(states, static, rtol=0, atol=1e-5)
    for row, end in enumerate(ends):
        expected = reference_states(drafter, features[row, :end].numpy(), int(ids[row, end]))
        expected = torch.from_numpy(np.array(expected)).float()
        torch.testing.assert_close(states[row], expected, rtol=0, atol=2e-5)


def test_sequences_of_a_cache_are_dropped_and_joined():
    drafter = build_drafter(**VARIANTS["sliding"])
    ids, features = texts(3)
    ends = [6, 19, 11]
    anchors = ids[torch.arange(3), torch.tensor(ends)]
    cache = drafter.new_cache(3)
    fill(drafter, cache, features, ends)
    states = drafter.draft_states(cache, anchors)
    cache.keep_sequences([2, 0])
    assert cache.lengths == [11, 6]
    torch.testing.assert_close(drafter.draft_states(cache, anchors[[2, 0]]), states[[2, 0]])
    long = drafter.new_cache(1)
    drafter.append(long, torch.randn(1, 100, CONFIG.feature_size), [100])  # another capacity
    single = drafter.new_cache(1)
    fill(drafter, single, features[1:2], ends[1:2])
    joined = BlockCache.join([long, single, cache])
    assert joined.lengths == [100, 19, 11, 6]
    assert joined.batch == 4
    again = drafter.draft_states(joined, torch.cat([anchors[:1], anchors[[1, 2, 0]]]))
    torch.testing.assert_close(again[1:], states[[1, 2, 0]])


def test_embeddings_of_its_own_and_a_reduced_vocabulary():
    plain = build_drafter()
    embedding = plain._shared[0].weight.detach()
    own = build_drafter(has_own_embedding=True, has_own_output=True, draft_vocab_size=10,
                        logit_scale=0.5)  # fmt: skip
    chosen = torch.arange(10) * 3 + 2
    state = {
        **plain.state_dict(),
        "embed_tokens.weight": embedding,
        "d2t": chosen - torch.arange(10),
        "lm_head.weight": plain._shared[1].weight.detach()[chosen],
    }
    own.load_state_dict(state)
    own._shared = ()
    ids, features = texts(1)
    states = drafted(plain, ids, features, [9])
    torch.testing.assert_close(drafted(own, ids, features, [9]), states)
    torch.testing.assert_close(own.logits(states), plain.logits(states)[..., chosen] * 0.5)
    assert own.to_target_ids(torch.tensor([[0, 9]])).tolist() == [[2, 29]]
    assert plain.to_target_ids(torch.tensor([4])).tolist() == [4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 3 * VOCAB}, "drafter has a vocabulary of 144, the target one of 48"),
        ({"hidden_layers": (0, 2)}, r"layers \(0, 2\); the target has 2, expected 0..1"),
    ],
)
def test_another_target_is_refused(options, message):
    drafter = BlockDrafter(dataclasses.replace(CONFIG, **options))
    with pytest.raises(ValueError, match=message):
        drafter.attach(build_base("llama"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_layers": 0}, "num_layers is 0; expected 1 or more"),
        ({"layer_types": ("full", "full")}, "layer_types is"),
        (
            {"draft_vocab_size": 99, "has_own_output": True},
            "draft_vocab_size is 99; expected 1..48",
        ),
    ],
)
def test_values_that_do_not_fit_together_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        BlockDrafter(dataclasses.replace(CONFIG, **options))


def test_wrong_calls_are_refused():
    drafter = BlockDrafter(CONFIG)
    cache = drafter.new_cache(2)
    with pytest.raises(ValueError, match=r"features has shape \(2, 3, 9\).*expected \(2, 3, 64\)"):
        drafter.append(cache, torch.zeros(2, 3, 9), [3, 3])
    with pytest.raises(ValueError, match=r"lengths is \[3, 4\]; expected 0..3"):
        drafter.append(cache, torch.zeros(2, 3, 64), [3, 4])
    with pytest.raises(RuntimeError, match=r"call attach\(target\)"):
        drafter.draft_states(cache, torch.tensor([1, 2]))
    other = BlockDrafter(dataclasses.replace(CONFIG, num_layers=1)).new_cache(1)
    with pytest.raises(ValueError, match="2 caches of 2 kinds"):
        BlockCache.join([cache, other])
