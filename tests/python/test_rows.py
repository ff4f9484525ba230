"""Rows of a batch's KV cache, against plain lists of what each text holds."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicIndexedLayer, DynamicLayer

from lattice_bpd import NGramLM
from lattice_bpd.decode import generate
from lattice_bpd.train.responses.generation import generate_responses
from lattice_bpd.verify import row_buffers
from lattice_bpd.verify import rows as rows_module
from lattice_bpd.verify.cache import EMPTY
from lattice_bpd.verify.row_buffers import copy_on_device, move_on_device
from lattice_bpd.verify.rows import Rows
from target_models import VOCAB, build_target

SIZES = ((3, 4, 5), (2, 6, 6), (3, 4, 5))  # heads and widths of keys and values of three layers


def make_cache(lengths: list[int], rng: np.random.Generator) -> tuple[DynamicCache, list[Any]]:
    """A cache of transformers, padded on the left, and each text's keys and values by layer.

    Layers differ in shape; one holds nothing, and the last keys of an indexer as well.
    """
    width, cache = max(lengths), DynamicCache()
    layers: list[Any] = [DynamicLayer() for _ in SIZES]
    layers[-1] = DynamicIndexedLayer()
    texts: list[Any] = [[] for _ in lengths]
    for layer, (heads, *sizes) in zip(layers, SIZES, strict=True):
        parts = [random_keys(len(lengths), heads, width, size, rng) for size in sizes]
        layer.update(*parts)
        if isinstance(layer, DynamicIndexedLayer):
            parts.append(random_keys(len(lengths), 1, width, 4, rng))
            layer.update_indexer(parts[-1][:, 0])
        for row, length in enumerate(lengths):
            texts[row].append([part[row, :, width - length :].clone() for part in parts])
    cache.layers = [*layers[:1], EMPTY(), *layers[1:]]
    return cache, texts


def random_keys(rows: int, heads: int, count: int, size: int, rng: np.random.Generator) -> Any:
    """Of any strides; some are those that the core does not write."""
    keys = torch.from_numpy(rng.normal(size=(rows, count, heads, 2 * size)).astype(np.float32))
    keys = keys[..., ::2] if rng.random() < 0.3 else keys[..., :size]
    return keys.transpose(1, 2) if rng.random() < 0.5 else keys.transpose(1, 2).contiguous()


def call(rows: Rows, texts: list[Any], size: int, rng: np.random.Generator) -> list[Any]:
    """Write new keys to each row and check what the call reads of those before.

    Args:
        rows: the cache.
        texts: of each row of the call.
        size: tokens of each row.

    Returns:
        The new keys by row, layer and part.
    """
    new: list[Any] = [[] for _ in texts]
    numbers = [number for number, one in enumerate(rows.layers) if not isinstance(one, EMPTY)]
    for index, number in enumerate(numbers):
        heads, *sizes = SIZES[index]
        parts = [random_keys(len(texts), heads, size, one, rng) for one in sizes]
        read = list(rows.update(*parts, number))
        if index == len(SIZES) - 1:
            parts.append(random_keys(len(texts), 1, size, 4, rng))
            read.append(rows.update_indexer(parts[-1][:, 0], number)[:, None])
        for whole in read:
            assert whole.shape[2] == rows.width + size
            assert bool(whole.isfinite().all())
        for row, text in enumerate(texts):
            new[row].append([part[row] for part in parts])
            for position, (old, added, whole) in enumerate(
                zip(text[index], new[row][-1], read, strict=True)
            ):
                length = old.shape[1]
                assert torch.equal(whole[row, :, :length], old), (index, position)
                assert torch.equal(whole[row, :, length : length + size], added)
    return new


def joined(text: list[Any], new: list[Any], nodes: list[int]) -> list[Any]:
    """A text and the chosen new tokens."""
    pairs = zip(text, new, strict=True)
    return [
        [torch.cat([a, b[:, nodes]], dim=1) for a, b in zip(*pair, strict=True)] for pair in pairs
    ]


def cut(text: list[Any], length: int) -> list[Any]:
    return [[part[:, :length] for part in parts] for parts in text]


def assert_holds(rows: Rows, texts: list[Any]) -> None:
    lengths = [text[0][0].shape[1] for text in texts]
    assert rows.lengths == lengths
    assert (rows.width, len(rows.lengths)) == (max(lengths), len(texts))
    assert rows.get_seq_length() == rows.width
    for row, text in enumerate(texts):
        kept = [layer for layer in rows.save(row, lengths[row]) if layer]
        for layer, wanted in zip(kept, text, strict=True):
            for part, own in zip(layer, wanted, strict=True):
                assert torch.equal(part[0], own)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_texts_hold_what_was_kept_of_each_call(batch: int) -> None:
    rng = np.random.default_rng(batch)
    lengths = rng.integers(1, 7, batch).tolist()
    cache, texts = make_cache(lengths, rng)
    rows = Rows.from_cache(cache, lengths, num_free=3)
    assert_holds(rows, texts)
    for _ in range(150):
        size, count = int(rng.integers(1, 6)), len(rows.lengths)
        match rng.integers(0, 5):
            case 0 | 1:  # nodes of a tree
                new = call(rows, texts, size, rng)
                nodes = [
                    [0, *sorted(rng.choice(size - 1, rng.integers(0, size), replace=False) + 1)]
                    if size > 1 else [0]
                    for _ in texts
                ]  # fmt: skip
                nodes = [[int(node) for node in one] for one in nodes]
                rows.keep_nodes(nodes)
                texts = [joined(*one) for one in zip(texts, new, nodes, strict=True)]
            case 2 | 3:  # rows of branches
                further = rng.integers(0, count, rng.integers(0, 4)).tolist()
                sequences = [*range(count), *further]
                rows.branch(sequences)
                new = call(rows, [texts[number] for number in sequences], size, rng)
                own = [[r for r, s in enumerate(sequences) if s == n] for n in range(count)]
                chosen = [int(rng.choice(of_text)) for of_text in own]
                counts = rng.integers(1, size + 1, count).tolist()
                rows.keep_rows(chosen, counts)
                texts = [
                    joined(text, new[row], list(range(kept)))
                    for text, row, kept in zip(texts, chosen, counts, strict=True)
                ]
            case _ if rng.random() < 0.5:
                lengths = [int(rng.integers(1, length + 1)) for length in rows.lengths]
                rows.roll_back(lengths)
                texts = [cut(text, length) for text, length in zip(texts, lengths, strict=True)]
            case _:
                kept = rng.integers(0, count, batch).tolist()
                kept = sorted(set(kept)) if rng.random() < 0.5 else kept
                rows.keep_sequences(kept)
                texts = [texts[number] for number in kept]
        assert_holds(rows, texts)


def test_saved_texts_and_parts_of_a_cache() -> None:
    rng = np.random.default_rng(7)
    cache, texts = make_cache([4, 4, 4], rng)
    rows = Rows.from_cache(cache)
    rows.reserve(4, 20)
    assert rows.shape == (4, 20)
    assert rows.position_bytes == 4 * (2 * 3 * 9 + 2 * 12 + 4)
    part = rows.part(1, 2, 3)
    new = call(part, [cut(text, 3) for text in texts[1:]], 2, rng)  # in the memory of rows 1 and 2
    saved = rows.save(2, 5)
    rows.load(saved, 3, 5)
    rows.set_texts([4, 5, 5, 5])
    after = [joined(cut(text, 3), own, [0, 1]) for text, own in zip(texts[1:], new, strict=True)]
    assert_holds(rows, [texts[0], *after, after[1]])
    rows.branch([0, 1, 2, 3, 0])
    rows.set_texts([2, 3])
    rows.branch([0, 1, 0])  # what a row of a branch had of text 0 is not that of the new one
    assert_holds(rows.part(2, 1, 2), [cut(texts[0], 2)])
    assert not rows.is_even


def test_layers_that_no_call_extends_keep_what_they_hold() -> None:
    """Those of an image: they have another number of positions, and models read them."""
    rng = np.random.default_rng(1)
    cache = DynamicCache()
    image = [random_keys(2, 3, 9, size, rng) for size in (4, 4)]
    cache.update(random_keys(2, 3, 5, 4, rng), random_keys(2, 3, 5, 4, rng), 0)
    cache.update(*image, 1)
    rows = Rows.from_cache(cache, [5, 5])
    for _ in range(3):
        rows.branch([0, 1, 1])
        rows.update(random_keys(3, 3, 2, 4, rng), random_keys(3, 3, 2, 4, rng), 0)
        layer: Any = rows.layers[1]
        assert torch.equal(layer.keys, image[0][[0, 1, 1]])
        rows.keep_rows([0, 2], [2, 1])
        assert torch.equal(layer.values, image[1])
    rows.keep_sequences([1])
    assert torch.equal(layer.keys, image[0][1:])


def test_views_follow_their_buffers() -> None:
    rng = np.random.default_rng(2)
    cache, texts = make_cache([3, 3], rng)
    rows = Rows.from_cache(cache, num_free=2)
    (stack, _, _), state = rows._stacks, rows.call
    call(rows, texts, 2, rng)
    whole, after = stack._parts(state, 2)
    assert stack._parts(state, 2)[0] is whole  # cut once for all layers
    before = stack.buffers[0]
    rows.keep_sequences([1, 0])  # other buffers, of the same shape and lengths
    assert stack.buffers[0] is not before
    whole, after = stack._parts(state, 2)
    assert whole[0][0].data_ptr() == stack.buffers[0][0].data_ptr()
    assert after[0][0].data_ptr() == stack.buffers[0][0, :, :, 3:].data_ptr()
    memory = stack._bytes()
    rows.reserve(2, 900)
    assert stack._bytes() is not memory


def test_memory_of_caches_is_freed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the garbage collector, which does not know how much memory of a GPU they hold."""
    made: list[Any] = []

    class Watched(row_buffers.Stack):
        def __init__(self, buffers: Any) -> None:
            super().__init__(buffers)
            made.append(weakref.ref(self))

    monkeypatch.setattr(rows_module, "Stack", Watched)
    model, prompts = build_target("llama"), [[3, 4, 5, 3, 4], [6, 7, 6]]
    lm = NGramLM.train(prompts, 2, vocab_size=VOCAB, smoothing="witten_bell")
    gc.collect()
    gc.disable()
    try:
        for strategy in ("mixture", "greedy"):
            options: dict[str, Any] = {"lm": lm} if strategy == "mixture" else {}
            generate(model, prompts[0], strategy, max_new_tokens=8, **options)
            generate(model, prompts, strategy, max_new_tokens=8, **options)
        list(generate_responses(model, prompts, 8))
        assert len(made) >= 5
        assert [number for number, one in enumerate(made) if one() is not None] == []
    finally:
        gc.enable()


def test_accelerators_copy_and_move_as_the_core_does() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        count, ours = int(rng.integers(1, 5)), row_buffers.Stack(
            [torch.randn(2, 6, 3, 12, size) for size in (4, 5)]
        )  # fmt: skip
        theirs = [buffer.clone() for buffer in ours.buffers]
        begin, end = sorted(rng.integers(0, 13, 2).tolist())
        first = rng.permutation(6)
        copies = [(int(first[0]), int(first[1 + n]), begin, end) for n in range(count)]
        copies += [(old, old - 1, 0, 12 - old) for old in (4, 5)]  # one text leaves
        ours.copy(copies)
        copy_on_device(theirs, copies)
        starts = rng.integers(1, 9, 5).tolist()  # one row has none
        sources = [rng.integers(0, 12, rng.integers(0, 4)).tolist() for _ in starts]
        ours.move(starts, sources)
        move_on_device(theirs, starts, sources)
        for own, buffer in zip(ours.buffers, theirs, strict=True):
            assert torch.equal(own, buffer)


def test_a_cache_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="covers no token"):
        Rows.from_cache(DynamicCache())
