"""Buffers of a batch's KV cache, and rows that repeat its sequences, against plain copies."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from transformers import LlamaConfig, StaticCache

from lattice_bpd import NGramLM
from lattice_bpd.decode import generate
from lattice_bpd.train.responses.generation import generate_responses
from lattice_bpd.verify import batch_cache
from lattice_bpd.verify.batch_cache import BatchCache, StackedCache
from lattice_bpd.verify.cache import RepeatedRows, copy_on_device, move_in_layers, move_on_device
from target_models import VOCAB, build_target


def make_cache(batch: int, width: int, seed: int = 0) -> StackedCache:
    """Two layers, three heads, keys and values of different sizes."""
    generator = torch.Generator().manual_seed(seed)
    keys, values = (
        torch.randn(2, batch, 3, width + 400, size, generator=generator) for size in (4, 5)
    )
    return StackedCache(keys, values, width)


def repeat(cache: StackedCache, sequences: list[int]) -> StackedCache:
    """A plain copy."""
    return StackedCache(cache.keys[:, sequences], cache.values[:, sequences], cache.width)


def same(rows: StackedCache, wanted: StackedCache) -> bool:
    """Whether the slots in use hold the same."""
    return rows.width == wanted.width and all(
        torch.equal(a[:, :, :, : rows.width], b[:, :, :, : rows.width])
        for a, b in ((rows.keys, wanted.keys), (rows.values, wanted.values))
    )


def test_views_of_a_stacked_cache_follow_its_buffers() -> None:
    cache = make_cache(2, 3)
    keys = cache.stack.parts(3, 5)[0]
    assert cache.stack.parts(3, 5)[0] is keys  # cut once for all layers
    cache.select_sequences([1, 1])  # other buffers, of the same shape and width
    views = cache.stack.parts(3, 5)
    for layer in range(2):
        assert views[0][layer].data_ptr() == cache.keys[layer].data_ptr()
        assert views[2][layer].data_ptr() == cache.keys[layer, :, :, 3:].data_ptr()
        assert views[3][layer].shape == (2, 3, 2, 5)
    memory = cache._bytes()
    cache.stack.reserve(900)  # and larger ones
    assert cache._bytes() is not memory


def test_memory_of_caches_is_freed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the garbage collector, which does not know how much memory of a GPU they hold."""
    made: list[Any] = []

    class Watched(batch_cache._Stack):
        def __init__(self, *buffers: Any) -> None:
            super().__init__(*buffers)
            made.append(weakref.ref(self))

    monkeypatch.setattr(batch_cache, "_Stack", Watched)
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
        assert len(made) > 5
        assert [number for number, one in enumerate(made) if one() is not None] == []
    finally:
        gc.enable()


def test_copies_of_rows_are_forgotten_with_what_they_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_cache, "MAX_HOLES", 4)
    cache = make_cache(3, 1)
    state = BatchCache(cache, [1, 1, 1])

    def step(nodes: list[list[int]]) -> None:
        start = state.width
        for part in (cache.keys, cache.values):
            part[:, :, :, start : start + 5] = torch.randn(part[:, :, :, start : start + 5].shape)
        cache.set_width(start + 5)
        state.keep_nodes(nodes, 5)
        check()

    def check() -> None:
        assert same(state.repeated([0, 0, 1], 4), repeat(cache, [0, 0, 1]))

    step([[0, 1], [0, 1], [0, 1]])
    state.roll_back([1, 1, 1])
    step([[0, 1], [0, 1], [0, 1]])
    state.keep_sequences([2, 1])
    check()
    step([[0, 1, 2, 3, 4], [0]])
    step([[0], [0, 1, 2, 3, 4]])  # leaves holes, a third of the cache
    assert state.width == max(state.lengths)


def test_calls_on_a_static_cache_never_shrink_and_fit() -> None:
    state = BatchCache(StaticCache(config=LlamaConfig(num_hidden_layers=1), max_cache_len=9), [0])
    assert [state.call_size(tokens) for tokens in (5, 3, 9)] == [5, 5, 9]
    with pytest.raises(ValueError, match=r"cache has 9 positions, 0 .* expected 10 free"):
        state.call_size(10)


@pytest.mark.parametrize("batch", [1, 3])
def test_rows_are_what_a_copy_would_be(batch: int) -> None:
    rng = np.random.default_rng(batch)
    cache, rows = make_cache(batch, 5), RepeatedRows()
    for _ in range(120):
        match rng.integers(0, 8):
            case 0:
                cache.set_width(max(1, cache.width - int(rng.integers(0, 9))))
                rows.keep_positions(cache.width)
            case 1:
                cache.select_sequences(rng.integers(0, batch, batch).tolist())
                rows.forget()
        sequences = sorted(rng.integers(0, batch, rng.integers(1, 7)).tolist())
        num_free = int(rng.integers(1, 9))
        repeated = rows.repeat(cache, sequences, num_free)
        assert repeated.keys.shape[3] >= cache.width + num_free
        assert same(repeated, repeat(cache, sequences))
        for part in (repeated.keys, repeated.values):  # the call writes after these positions, ..
            part[:, :, :, cache.width : cache.width + num_free] = torch.randn(())
        chosen = rng.integers(0, len(sequences), batch).tolist()
        rows.append_to(cache, chosen, int(rng.integers(0, num_free + 1)))  # .. and a part is kept


def test_accelerators_copy_and_move_as_the_core_does() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        batch, rows, count = (int(number) for number in rng.integers(1, 5, 3))
        source, ours, theirs = make_cache(batch, 9), make_cache(6, 9, 1), make_cache(6, 9, 1)
        chosen = rng.integers(0, batch, rows).tolist()
        first, start = int(rng.integers(0, 7 - rows)), int(rng.integers(0, 9))
        ours.copy_positions(source, chosen, first, start, count)
        for part, buffer in ((source.keys, theirs.keys), (source.values, theirs.values)):
            copy_on_device(part, chosen, buffer, first, start, count)
        assert torch.equal(ours.keys, theirs.keys)
        assert torch.equal(ours.values, theirs.values)
        slots = [rng.integers(0, 9, count).tolist() for _ in range(6)]
        ours.move_positions(start, slots)
        for buffer in (theirs.keys, theirs.values):
            move_on_device(buffer, start, slots)
        assert torch.equal(ours.keys, theirs.keys)
        assert torch.equal(ours.values, theirs.values)


def test_moves_in_layers_are_those_of_every_tensor() -> None:
    """Layers of sparse attention have keys of their indexer as well, (B, positions, D)."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        shapes = {"keys": (3, 2, 9, 4), "values": (3, 2, 9, 5), "indexer_keys": (3, 9, 4)}
        tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
        layer = SimpleNamespace(**{name: part.clone() for name, part in tensors.items()})
        count, start = (int(number) for number in rng.integers(1, 5, 2))
        sources = rng.integers(0, 9, (3, count)).tolist()
        move_in_layers(SimpleNamespace(layers=[layer]), start, sources)
        for name, part in tensors.items():
            wanted = part.clone()
            for row, positions in enumerate(sources):
                for index, source in enumerate(positions):
                    wanted[row, ..., start + index, :] = part[row, ..., source, :]
            assert torch.equal(getattr(layer, name), wanted), name
