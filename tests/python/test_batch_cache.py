"""What a batch's KV cache holds after every step, and rows that repeat its sequences."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from transformers import DynamicCache

from lattice_bpd.verify import batch_cache
from lattice_bpd.verify.batch_cache import BatchCache, StackedCache
from lattice_bpd.verify.cache import RepeatedRows, copy_on_device, move_on_device

LAYERS, HEADS = 2, 3


class Labels:
    """A BatchCache over labels, and the text positions that each sequence should have.

    Attributes:
        state: the cache under test.
        names: the number by which each sequence is labeled.
    """

    def __init__(self, prompts: list[int], *, stacked: bool = True) -> None:
        self.names = list(range(len(prompts)))
        longest = max(prompts)
        cache = DynamicCache()
        positions = torch.arange(longest) - torch.tensor([longest - n for n in prompts])[:, None]
        for layer in range(LAYERS):
            cache.update(*self._states(positions), layer)
        self.state = BatchCache(
            StackedCache.from_cache(cache, 16) if stacked else cache, list(prompts)
        )

    def _states(self, positions: torch.Tensor, names: list[int] | None = None):
        """Keys and values for (R, T) text positions of the sequences with these names."""
        names = self.names if names is None else names
        labels = 1000.0 * torch.tensor(names)[:, None] + positions
        keys = labels[:, None, :, None].expand(-1, HEADS, -1, 4).contiguous()
        return keys, -keys[..., :2].contiguous()

    def write(self, cache, positions: torch.Tensor, names: list[int] | None = None) -> None:
        """What a call of the target does: append keys and values of its tokens in each layer."""
        for layer in range(LAYERS):
            cache.update(*self._states(positions, names), layer)

    def step_tree(self, accepted: list[list[int]], parents: list[int]) -> None:
        """A call over the same tree for each sequence; `accepted` are the kept nodes."""
        depths = [0]
        for parent in parents[1:]:
            depths.append(depths[parent] + 1)
        starts = torch.tensor(self.state.lengths)[:, None]
        # rejected nodes get labels of their own, so that keeping one shows
        labels = starts + torch.tensor(depths) + 0.5
        for row, nodes in enumerate(accepted):
            labels[row, nodes] -= 0.5
        self.write(self.state.cache, labels)
        self.state.keep_nodes(accepted, len(parents))

    def step_rows(self, sequences: list[int], rows: list[int], counts: list[int], size: int):
        """A call in rows; row `rows[b]` of sequence b keeps `counts[b]` tokens."""
        state = self.state
        repeats = len(sequences) > len(state)
        cache = state.repeated(sequences, size) if repeats else state.cache
        if repeats:
            self.assert_rows(cache, sequences)
        steps = torch.arange(size)
        labels = torch.tensor([state.lengths[n] for n in sequences])[:, None] + steps + 0.5
        for row, count in zip(rows, counts, strict=True):
            labels[row, :count] -= 0.5
        self.write(cache, labels, [self.names[n] for n in sequences])
        state.keep_rows(cache, rows, counts, size, repeats=repeats)

    def positions_of(self, number: int) -> np.ndarray:
        """The text position that the state claims for each cache position."""
        if self.state.positions is None:
            return np.arange(self.state.width)
        return self.state.positions[number]

    def assert_rows(self, cache, sequences: list[int]) -> None:
        """Row r of the cache holds what sequence sequences[r] should, in all layers and heads."""
        for row, number in enumerate(sequences):
            claimed = self.positions_of(number)
            used = np.flatnonzero(claimed >= 0)
            assert claimed[used].tolist() == list(range(self.state.lengths[number]))
            wanted = 1000.0 * self.names[number] + torch.arange(len(used)).float()
            for layer in range(LAYERS):
                if isinstance(cache, StackedCache):
                    keys, values = cache.keys[layer, row], cache.values[layer, row]
                else:
                    keys, values = cache.layers[layer].keys[row], cache.layers[layer].values[row]
                for head in range(HEADS):
                    assert keys[head, used, 0].tolist() == wanted.tolist()
                    assert values[head, used, 1].tolist() == (-wanted).tolist()

    def check(self) -> None:
        """All sequences hold their own text, and the cache has the width of the state."""
        assert self.state.cache.get_seq_length() == self.state.width
        self.assert_rows(self.state.cache, list(range(len(self.state))))


@pytest.mark.parametrize("stacked", [True, False], ids=["stacked", "dynamic"])
@pytest.mark.parametrize("prompts", [[4], [2, 5, 3]], ids=["one", "ragged"])
def test_accepted_nodes_are_moved_together(prompts, stacked):
    labels = Labels(prompts, stacked=stacked)
    # a chain 0 1 2, a sibling chain 0 3 4, and another leaf 5 below 3
    parents = [-1, 0, 1, 0, 3, 3]
    paths = [[0, 3, 5], [0, 1, 2], [0], [0, 3, 4], [0, 3], [0, 1]]
    rng = np.random.default_rng(0)
    for step in range(12):
        chosen = rng.integers(0, len(paths), len(prompts)) if step else [0] * len(prompts)
        before = list(labels.state.lengths)
        labels.step_tree([paths[n] for n in chosen], parents)
        grown = [len(paths[n]) for n in chosen]
        assert labels.state.lengths == [b + g for b, g in zip(before, grown, strict=True)]
        labels.check()


@pytest.mark.parametrize("layout", ["tree", "rows"])
def test_holes_are_cleaned_up_and_copies_of_rows_with_them(monkeypatch, layout):
    monkeypatch.setattr(batch_cache, "MAX_HOLES", 6)
    labels, clean_ups = Labels([3, 5, 4]), 0
    state = labels.state
    for step in range(18):
        # each sequence in turn keeps 9 tokens, the others one
        counts, width = [1, 1, 1], state.width + 9
        counts[step % 3] = 9
        if layout == "tree":
            labels.step_tree([list(range(n)) for n in counts], list(range(-1, 8)))
        else:
            labels.step_rows([0, 0, 1, 1, 2, 2], [1, 2, 5], counts, 9)
        longest = max(state.lengths)
        due = width - longest >= max(6, longest // 2)  # a third of the cache
        assert state.width == (longest if due else width)
        clean_ups += due
        labels.check()
        # reads copies of rows that an earlier call made
        labels.assert_rows(state.repeated([0, 0, 1, 1, 2, 2], 9), [0, 0, 1, 1, 2, 2])
    assert 3 <= clean_ups < 18


def test_copies_of_rows_forget_what_was_rolled_back():
    labels = Labels([4, 4])
    labels.write(labels.state.cache, torch.tensor([[4.25, 5.25]] * 2))  # other tokens than later
    labels.state.keep_nodes([[0, 1], [0, 1]], 2)
    labels.state.repeated([0, 0, 1], 4)
    labels.state.roll_back([4, 4])
    labels.step_tree([[0, 1], [0, 1]], [-1, 0])
    labels.check()
    labels.assert_rows(labels.state.repeated([0, 0, 1], 4), [0, 0, 1])


def test_sequences_that_leave_take_their_copies_along():
    labels = Labels([6, 4, 5])
    labels.assert_rows(labels.state.repeated([0, 1, 1, 2], 4), [0, 1, 1, 2])
    labels.state.keep_sequences([2, 1])
    labels.names = [2, 1]
    labels.check()
    labels.assert_rows(labels.state.repeated([0, 1, 1], 4), [0, 1, 1])


def test_views_of_a_stacked_cache_follow_its_buffers():
    labels = Labels([3, 3])
    cache = labels.state.cache
    keys = cache.parts(3, 5)[0]
    assert cache.parts(3, 5)[0] is keys  # cut once for all layers
    labels.state.keep_sequences([1, 1])  # other buffers, of the same shape and width
    labels.names = [1, 1]
    views = cache.parts(3, 5)
    for layer in range(LAYERS):
        assert views[0][layer].data_ptr() == cache.keys[layer].data_ptr()
        assert views[2][layer].data_ptr() == cache.keys[layer, :, :, 3:].data_ptr()
        assert views[3][layer].shape == (2, HEADS, 2, 2)
    labels.step_tree([[0, 1], [0, 1]], [-1, 0])
    labels.check()
    moved = cache._bytes()
    cache.reserve(400)  # and larger ones
    assert cache._bytes() is not moved
    labels.step_tree([[0, 2], [0, 2]], [-1, 0, 0])
    labels.check()


def make_cache(batch: int, width: int, seed: int = 0) -> StackedCache:
    """Two layers, three heads, keys and values of different sizes."""
    generator = torch.Generator().manual_seed(seed)
    keys, values = (
        torch.randn(2, batch, 3, width + 400, size, generator=generator) for size in (4, 5)
    )
    return StackedCache(keys, values, width)


def same(rows: StackedCache, wanted: StackedCache) -> bool:
    """Whether the slots in use hold the same."""
    return rows.width == wanted.width and all(
        torch.equal(a[:, :, :, : rows.width], b[:, :, :, : rows.width])
        for a, b in ((rows.keys, wanted.keys), (rows.values, wanted.values))
    )


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
        assert same(repeated, cache.repeat_sequences(sequences, num_free))
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
