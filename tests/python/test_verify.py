"""Verification: trees and rows on real architectures, against reading the whole text."""

from __future__ import annotations

import copy

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from transformers import DynamicCache

from blockwise_models import ARCHITECTURES, CACHE_NAME, VOCAB, model_of, plain_greedy
from lattice_bpd.verify import (
    CausalLMTarget,
    PrefixTree,
    greedy_tokens,
    verify_drafts,
    verify_trees,
)
from lattice_bpd.verify.cache import check_cache
from lattice_bpd.verify.reading import read_texts
from lattice_bpd.verify.rows import Rows
from lattice_bpd.verify.verification import follow_greedy

DRAFTS = torch.tensor([[4, 9, 6], [4, 5, 0], [9, 5, 6]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [3, 16, 40])
def test_trees_are_followed_by_the_choice_at_each_node(dtype, vocab_size):
    rng, generator = np.random.default_rng(vocab_size), torch.Generator().manual_seed(vocab_size)
    for _ in range(20):
        logits = torch.randint(0, 3, (2, 30, vocab_size), generator=generator).to(dtype)  # ties
        logits[0, :, -1] = -torch.inf
        drafts = [rng.integers(0, vocab_size, (6, 4)) for _ in range(3)]
        drafts[0][0] = greedy_tokens(logits)[0, :4].numpy()
        trees = [PrefixTree.from_drafts(3, rows) for rows in drafts]
        indices = [rng.permutation(60)[: len(tree)].astype(np.int64) for tree in trees]
        indices[0][:5] = range(5)  # so that the first draft is right
        wanted = greedy_tokens(logits).flatten().tolist()
        followed = follow_greedy(trees, logits, indices)
        assert len(followed[0][0]) == 5
        for tree, at, (nodes, tokens, end) in zip(trees, indices, followed, strict=True):
            assert end == at[nodes[-1]]
            assert tokens == [wanted[at[node]] for node in nodes]
            paths = {tuple(path[: len(nodes)]) for path in tree.list_paths()}
            assert tuple(nodes) in paths
            assert [tree.token_ids[node] for node in nodes[1:]] == tokens[:-1]
            assert tokens[-1] not in tree.children(nodes[-1])


def test_bad_drafts_and_layouts_are_refused():
    target = CausalLMTarget(model_of("llama").base)
    cache = read(target, [1, 2])[1]
    for shape in ((0, 3), (3,), (1, 2, 3)):
        with pytest.raises(ValueError, match=r"drafts has shape .*expected \(drafts, slots\)"):
            verify_drafts(target, cache, 3, torch.zeros(shape, dtype=torch.int64))
    with pytest.raises(ValueError, match="layout is 'bush'; expected one of auto, tree, rows"):
        verify_drafts(target, cache, 3, DRAFTS, layout="bush")


@pytest.mark.parametrize(("layout", "cure"), [("rows", "num_drafts"), ("tree", "max_nodes")])
def test_lack_of_memory_says_what_to_lower(layout, cure, monkeypatch):
    def full(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 1 EiB")

    target = CausalLMTarget(model_of("llama").base)
    cache = read(target, [1, 2])[1]
    assert target.refuses_tree() is None
    monkeypatch.setattr(CausalLMTarget, "__call__", full)
    with pytest.raises(MemoryError, match=rf"call of \d rows x \d tokens.*1 EiB.*lower {cure}"):
        verify_drafts(target, cache, 3, DRAFTS, layout=layout)


def read(target: CausalLMTarget, tokens: list[int]):
    return target.read_prompts(torch.tensor([tokens]))


def draft_around(rng: np.random.Generator, wanted: list[int]) -> list[list[int]]:
    """Drafts that agree with the target for a while, and drafts that don't, in any order."""
    drafts = []
    for _ in range(int(rng.integers(1, 7))):
        draft = rng.integers(0, VOCAB, 4)
        agree = int(rng.integers(0, 5))
        draft[:agree] = wanted[:agree]
        drafts.append(draft.tolist())
    return drafts


def assert_cache_is_that_of(model, cache, tokens: list[int], row: int = 0):
    """A row holds the keys and values of reading its tokens at once."""
    with torch.inference_mode():
        fresh = DynamicCache()
        model.base(input_ids=torch.tensor([tokens]), **{CACHE_NAME: fresh})
    for number, expected in enumerate(fresh.layers):
        layer = cache.layers[number]
        for kept, wanted in ((layer.keys, expected.keys), (layer.values, expected.values)):
            own = kept[row : row + 1, :, : len(tokens)]
            torch.testing.assert_close(own, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("layout", ["tree", "rows"])
def test_both_layouts_accept_the_same_and_leave_the_same_cache(kind, layout):
    model = model_of(kind)
    target = CausalLMTarget(model.base)
    rng = np.random.default_rng(5)
    for length in (1, 5, 14):  # the last is beyond the sliding windows
        prompt = rng.integers(0, VOCAB, length).tolist()
        wanted = plain_greedy(model, prompt, 13)
        first, cache = read(target, prompt)
        tokens = [*prompt, int(first.logits[0, -1].argmax())]
        state = Rows.from_cache(cache, num_free=3)
        for _ in range(2):
            rest = wanted[len(tokens) - length :]
            drafts = draft_around(rng, rest)
            tree = PrefixTree.from_drafts(tokens[-1], drafts)
            verified = verify_trees(target, state, [tree], layout=layout).sequences[0]
            agree = max(sum(np.cumprod(np.equal(d, rest[:4]))) for d in drafts)
            assert verified.accept_length == agree
            assert verified.token_ids == rest[: agree + 1]
            tokens += verified.token_ids
            assert state.lengths == [len(tokens) - 1]
            assert int(state.get_seq_length()) == len(tokens) - 1 == state.width
            assert_cache_is_that_of(model, state, tokens[:-1])


@pytest.mark.parametrize("layout", ["tree", "rows"])
def test_a_cache_of_transformers_is_extended_in_place(layout):
    model = model_of("llama")
    target, prompt = CausalLMTarget(model.base), [3, 1, 4]
    wanted = plain_greedy(model, prompt, 12)
    _, cache = read(target, prompt)
    tokens = [*prompt, wanted[0]]
    while len(tokens) < len(prompt) + 8:
        rest = wanted[len(tokens) - len(prompt) :]
        drafts = torch.tensor([[7, 7, 7], [*rest[:2], VOCAB - 1]])
        tokens += verify_drafts(target, cache, tokens[-1], drafts, layout=layout).token_ids
        assert tokens[len(prompt) :] == wanted[: len(tokens) - len(prompt)]
        assert cache.get_seq_length() == len(tokens) - 1
        assert_cache_is_that_of(model, cache, tokens[:-1])


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("layout", ["tree", "rows"])
def test_ragged_batches_are_each_what_they_are_alone(kind, layout):
    model = model_of(kind)
    target = CausalLMTarget(model.base)
    rng = np.random.default_rng(6)
    prompts = [rng.integers(0, VOCAB, n).tolist() for n in (3, 11, 1, 7)]
    wanted = [plain_greedy(model, prompt, 50) for prompt in prompts]
    first, state = read_texts(target, prompts)
    tokens = [[*p, int(t)] for p, t in zip(prompts, first.logits[:, -1].argmax(-1), strict=True)]
    going = list(range(len(prompts)))
    for step in range(8):
        if step == 2:  # one sequence leaves
            state.keep_sequences([0, 1, 3])
            going.remove(2)
        trees = []
        for number in going:
            rest = wanted[number][len(tokens[number]) - len(prompts[number]) :]
            drafts = rng.integers(0, VOCAB, (2, 4)).tolist()
            if number == going[step % 3]:  # in turn, so that texts differ in length
                others = draft_around(rng, rest) if step % 2 else [[(rest[0] + 1) % VOCAB]]
                drafts = [*others, rest[:7]]
            trees.append(PrefixTree.from_drafts(tokens[number][-1], drafts))
        results = verify_trees(target, state, trees, layout=layout).sequences
        for number, verified in zip(going, results, strict=True):
            tokens[number] += verified.token_ids
            decoded = tokens[number][len(prompts[number]) :]
            assert decoded == wanted[number][: len(decoded)]
        assert state.lengths == [len(tokens[number]) - 1 for number in going]
        assert state.width == max(state.lengths)
        for row, number in enumerate(going):
            assert_cache_is_that_of(model, state, tokens[number][:-1], row)


def test_a_target_without_masks_of_its_callers_falls_back_to_rows():
    model = copy.deepcopy(model_of("llama"))
    target = CausalLMTarget(model.base)
    _, cache = read(target, [1, 2])
    model.base.config._attn_implementation = "flash_attention_2"
    assert "takes no custom mask" in target.refuses_tree()
    with pytest.raises(ValueError, match=r"not possible: .*custom mask.*; or use layout='rows'"):
        verify_drafts(target, cache, 3, DRAFTS, layout="tree")


def test_a_tree_probe_without_memory_is_tried_again(monkeypatch):
    model = copy.deepcopy(model_of("llama"))
    target, inner = CausalLMTarget(model.base), model.base.base_model
    read = inner.forward

    def full(*_args, **_options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    def forget_mask(*args, attention_mask=None, **options):
        return read(*args, **options)

    monkeypatch.setattr(inner, "forward", full)
    assert target.refuses_tree() is None
    monkeypatch.setattr(inner, "forward", forget_mask)
    assert "does not keep to a four-dimensional mask" in target.refuses_tree()
    monkeypatch.setattr(inner, "forward", read)
    assert "does not keep" in target.refuses_tree()  # an answer is remembered


def test_a_sliding_cache_is_refused():
    model = model_of("mistral")
    cache = DynamicCache(config=model.base.config)
    with torch.inference_mode():
        model.base(input_ids=torch.tensor([[1, 2, 3]]), **{CACHE_NAME: cache})
    with pytest.raises(ValueError, match="keeps all tokens of a sliding window"):
        check_cache(cache)
    with pytest.raises(ValueError, match="cannot be rolled back"):
        verify_drafts(CausalLMTarget(model.base), cache, 1, torch.tensor([[2]]))
    with pytest.raises(ValueError, match="target's list cannot be rolled back"):
        verify_drafts(CausalLMTarget(model.base), [], 1, torch.tensor([[2]]))
