"""The KV cache of several sequences that accept different numbers of tokens.

Every call appends the same number of cache positions to all sequences. A sequence that accepted
fewer tokens than another has holes, which the mask hides:

    cache position   0  1  2  3 | 4  5  6 | 7 ..
    sequence 0       .  a  b  c | d  e  f |         . left padding of the prompt
    sequence 1       a  b  c  d | e  .  . |         . hole

so accepted prefixes are moved only by a compaction, when holes are a third of the cache. One
sequence alone never has holes.

A `DynamicCache` copies itself whenever it grows. In a `StackedCache` of preallocated buffers new
keys are written after the old ones, a rejected draft is dropped by decreasing the width, and an
accepted path is moved by one copy of its positions in all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import Cache, StaticCache
from transformers.cache_utils import CacheLayerMixin

from lattice_bpd import _core
from lattice_bpd.verify.cache import (
    RepeatedRows,
    copy_on_device,
    crop_layers,
    move_in_layers,
    move_on_device,
    select_in_layers,
    stack_layers,
)

MAX_HOLES = 64  # fewer are never compacted
_MIN_GROWTH = 256  # cache positions that a full buffer grows by


Parts = tuple[tuple[Tensor, ...], ...]  # four of them, each with an entry for each layer


class _Stack:
    """Keys and values, which layers share with their cache instead of referring to it.

    In a cycle, memory of a GPU would wait for a garbage collector that does not count it.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values
        self._parts: tuple[tuple[int, int, Tensor], Parts] | None = None

    def parts(self, start: int, end: int) -> Parts:
        """Keys and values up to `end` of each layer, (B, heads, end, D), and those from `start` on.

        The views of all layers are created at once, for the first layer of a call: in small models
        creating views with torch takes longer than the copies.
        """
        if self._parts is not None:
            (known_start, known_end, buffer), parts = self._parts
            if known_start == start and known_end == end and buffer is self.keys:
                return parts
        if end > self.keys.shape[3]:
            self.reserve(end)
        whole = [buffer.narrow(3, 0, end) for buffer in (self.keys, self.values)]
        new = [part.narrow(3, start, end - start) for part in whole]
        by_layer = _by_index if torch.is_grad_enabled() else torch.unbind
        parts = tuple(tuple(by_layer(part)) for part in (*whole, *new))
        self._parts = (start, end, self.keys), parts
        return parts

    def reserve(self, width: int) -> None:
        """Move to larger buffers unless `width` positions fit."""
        capacity = self.keys.shape[3]
        if width <= capacity:
            return
        added = max(width - capacity, _MIN_GROWTH, capacity // 2)
        self.keys = torch.cat([self.keys, _new_empty(self.keys, added)], dim=3)
        self.values = torch.cat([self.values, _new_empty(self.values, added)], dim=3)


class StackedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer's view of the buffers."""

    is_sliding = False
    is_compileable = False
    is_croppable = True

    def __init__(self, stack: _Stack, number: int, width: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stack, self.number, self.width = stack, number, width
        self.is_initialized = True

    @property
    def keys(self) -> Tensor:
        """(B, heads, width, D) the layer's keys, for models that read them (Mllama)."""
        return self.stack.keys[self.number].narrow(2, 0, self.width)

    @keys.setter
    def keys(self, value: Tensor | None) -> None:
        """Ignored: the base class sets None initially."""

    @property
    def values(self) -> Tensor:
        """(B, heads, width, D') as `keys`."""
        return self.stack.values[self.number].narrow(2, 0, self.width)

    @values.setter
    def values(self, value: Tensor | None) -> None:
        """Ignored: the base class sets None initially."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """No-op: the buffers exist already."""

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Append (B, heads, T, D) keys and values; return all of them."""
        start, self.width = self.width, self.width + key_states.shape[2]
        keys, values, new_keys, new_values = self.stack.parts(start, self.width)
        new_keys[self.number].copy_(key_states)
        new_values[self.number].copy_(value_states)
        return keys[self.number], values[self.number]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Positions after the next call, and offset of the first."""
        return self.width + query_length, 0

    def get_seq_length(self) -> int:
        """Positions in use."""
        return self.width

    def get_max_length(self) -> int:
        """-1: it can grow."""
        return -1


class StackedCache(Cache):
    """Keys and values of all layers.

    Attributes:
        keys: (L, B, heads, capacity, D) float.
        values: (L, B, heads, capacity, D') float.
        width: cache positions in use.
    """

    def __init__(self, keys: Tensor, values: Tensor, width: int) -> None:
        self.stack, self.width = _Stack(keys, values), width
        self._views: tuple[Tensor, list[npt.NDArray[np.uint8]]] | None = None
        super().__init__(layers=[StackedLayer(self.stack, n, width) for n in range(len(keys))])

    keys, values = property(attrgetter("stack.keys")), property(attrgetter("stack.values"))

    @classmethod
    def from_cache(cls, cache: Cache, num_free: int) -> StackedCache | None:
        """The same keys and values with free capacity; None if layers differ in shape.

        Args:
            cache: a DynamicCache, or a StackedCache, which is returned itself.
            num_free: positions that can be appended without a copy.
        """
        if isinstance(cache, StackedCache):
            cache.stack.reserve(cache.width + num_free)
            return cache
        buffers = stack_layers(cache, num_free)
        return None if buffers is None else cls(*buffers)

    def set_width(self, width: int) -> None:
        """Drop all positions from `width` on."""
        self.width = width
        layers: list[Any] = self.layers
        for layer in layers:
            layer.width = width

    def move_positions(self, start: int, sources: Sequence[Sequence[int]]) -> None:
        """Copy cache positions to `start`, `start`+1, ... in every layer.

        Args:
            start: first position to write.
            sources: for each of B sequences the positions to copy.
        """
        if self.keys.device.type == "cpu":
            _core.move_slots(self._bytes(), start, sources)
            return
        for buffer in (self.keys, self.values):
            move_on_device(buffer, start, sources)

    def _bytes(self) -> list[npt.NDArray[np.uint8]]:
        """The buffers' memory, (L, B, heads, capacity, bytes) each."""
        if self._views is None or self._views[0] is not self.keys:
            parts = [part.view(torch.uint8).numpy() for part in (self.keys, self.values)]
            self._views = self.keys, parts
        return self._views[1]

    def select_sequences(self, sequences: Sequence[int]) -> None:
        """Keep the sequences of these indices; one may be kept several times."""
        index = torch.tensor(sequences, device=self.keys.device)
        self.stack.keys = self.keys.index_select(1, index)
        self.stack.values = self.values.index_select(1, index)

    def empty(self, rows: int, capacity: int) -> StackedCache:
        """A cache of this width over new buffers."""
        keys, values = (_new_empty(part, capacity, rows) for part in (self.keys, self.values))
        return StackedCache(keys, values, self.width)

    def over(self, keys: Tensor, values: Tensor, sequences: Sequence[int]) -> StackedCache:
        """A cache of this width over other buffers, whose row r repeats sequences[r]."""
        del sequences
        return StackedCache(keys, values, self.width)

    def append_rows(self, other: StackedCache, rows: Sequence[int], count: int) -> None:
        """Append `count` positions of other's rows, one row for each of B sequences."""
        start = self.width
        self.stack.reserve(start + count)
        self.copy_positions(other, rows, 0, start, count)
        self.set_width(start + count)

    def copy_positions(
        self, other: StackedCache, rows: Sequence[int], first_row: int, start: int, count: int
    ) -> None:
        """Copy `count` positions of other's rows, from `start` on, to rows from `first_row` on."""
        if self.keys.device.type == "cpu":
            _core.copy_slots(other._bytes(), rows, self._bytes(), first_row, start, count)
            return
        for source, buffer in ((other.keys, self.keys), (other.values, self.values)):
            copy_on_device(source, rows, buffer, first_row, start, count)


def _by_index(buffer: Tensor) -> tuple[Tensor, ...]:
    """The entries of the first axis; autograd forbids writes to the views of `unbind`."""
    return tuple(buffer[number] for number in range(len(buffer)))


def _new_empty(buffer: Tensor, positions: int, rows: int | None = None) -> Tensor:
    """An uninitialized buffer like another, with so many positions and rows."""
    layers, batch, heads, _, size = buffer.shape
    rows = batch if rows is None else rows
    return buffer.new_empty((layers, rows, heads, positions, size))


class BatchCache:
    """A target's cache over B sequences, and the tokens that its positions hold.

    Args:
        cache: what the target's calls read and extend, with B rows.
        lengths: tokens of each sequence that the cache covers; None: one sequence, all positions.

    Attributes:
        width: cache positions in use.
        lengths: tokens of each sequence; the next one has this position.
        capacity: cache positions of a static cache; None where the cache grows.
        positions: (B, width) int32, the text position of the token at each cache position; -1 for
            padding and holes. None where every cache position holds a token.
    """

    def __init__(self, cache: Any, lengths: list[int] | None = None) -> None:
        self.cache = cache
        self.width = int(cache.get_seq_length())
        self.capacity = cache.get_max_length() if isinstance(cache, StaticCache) else None
        self._call_size = 1
        self._rows = RepeatedRows()
        self.lengths = [self.width] if lengths is None else list(lengths)
        self.positions: npt.NDArray[np.int32] | None = None
        if any(length != self.width for length in self.lengths):
            steps = np.arange(self.width, dtype=np.int32)
            padding = self.width - np.array(self.lengths, np.int32)
            self.positions = np.maximum(steps[None] - padding[:, None], -1)

    def __len__(self) -> int:
        """B."""
        return len(self.lengths)

    def source_of(self, number: int) -> Any:
        """The encoded source of a sequence; None where the target has no encoder."""
        source = getattr(self.cache, "source", None)
        return None if source is None else source.row(number)

    def call_size(self, num_tokens: int) -> int:
        """Tokens per row of a call; with a static cache it never shrinks, to limit recompilation.

        Raises:
            ValueError: the static cache is full.
        """
        if self.capacity is None:
            return num_tokens
        self._call_size = max(self._call_size, num_tokens)
        if self.width + self._call_size > self.capacity:
            raise ValueError(
                f"verify: the static cache has {self.capacity} positions, {self.width} of them in "
                f"use; expected {self._call_size} free ones; make it longer by the drafts of a call"
            )
        return self._call_size

    def free_positions(self, size: int) -> int:
        """Positions of a static cache that are free after a call of `size` tokens."""
        return 0 if self.capacity is None else self.capacity - self.width - size

    def keep_nodes(self, accepted: list[list[int]], size: int) -> None:
        """After a tree-attention call of `size` tokens, keep the accepted nodes, given by index.

        Nodes 0, 1, 2, .. stay where they are; others are copied down.
        """
        counts = [len(nodes) for nodes in accepted]
        longest, start = max(counts), self.width
        for nodes in accepted:
            if nodes[-1] >= len(nodes):  # indices increase, so otherwise they are 0, 1, 2, ..
                # node 0 is always accepted and never moves
                moved = [[start + node for node in nodes[1:]] for nodes in accepted]
                move_positions(self.cache, start + 1, moved)
                break
        set_width(self.cache, start + longest, start + size)
        self._extend(counts, longest)

    def repeated(self, sequences: list[int], num_free: int) -> Any:
        """A cache of R rows, row r a copy of `sequences[r]`, for one call of `num_free` tokens."""
        if isinstance(self.cache, StackedCache):
            return self._rows.repeat(self.cache, sequences, num_free)
        select_sequences(self.cache, sequences)
        return self.cache

    def keep_rows(
        self, repeated: Any, rows: list[int], counts: list[int], size: int, *, repeats: bool
    ) -> None:
        """After a batched-verification call, keep the first positions of the chosen rows.

        Args:
            repeated: what `repeated` returned, or this cache itself where no row was repeated.
            rows: the row of each sequence.
            counts: accepted tokens of each sequence.
            size: positions that the call added.
            repeats: whether rows were repeated.
        """
        longest = max(counts)
        if isinstance(repeated, StackedCache) and repeated is not self.cache:
            self._rows.append_to(self.cache, rows, longest)
        else:
            if repeats:
                select_sequences(self.cache, rows)
            set_width(self.cache, self.width + longest, self.width + size)
        self._extend(counts, longest)

    def roll_back(self, lengths: list[int]) -> None:
        """Keep the first `lengths[b]` tokens of each sequence, one or more."""
        positions = self.positions
        if positions is None:
            positions = np.tile(np.arange(self.width, dtype=np.int32), (len(self), 1))
        positions = np.where(positions < np.array(lengths)[:, None], positions, np.int32(-1))
        width = int(np.flatnonzero((positions >= 0).any(axis=0))[-1]) + 1
        set_width(self.cache, width, self.width)
        self._rows.keep_positions(width)
        self.width, self.lengths = width, list(lengths)
        self.positions = None if min(lengths) == width else positions[:, :width]
        self._compact()

    def keep_sequences(self, sequences: list[int]) -> None:
        """Drop all other sequences; a sequence may be kept several times."""
        self._rows.forget()
        select_sequences(self.cache, sequences)
        self.lengths = [self.lengths[number] for number in sequences]
        if self.positions is not None:
            self.positions = self.positions[sequences]
            self._compact()

    def _extend(self, counts: list[int], longest: int) -> None:
        """Note that each sequence has `counts[b]` more tokens in `longest` more positions."""
        starts = self.lengths
        self.lengths = [length + count for length, count in zip(starts, counts, strict=True)]
        self.width += longest
        if self.positions is None and min(counts) == longest:
            return
        if self.positions is None:
            before = np.arange(self.width - longest, dtype=np.int32)
            self.positions = np.tile(before, (len(counts), 1))
        steps = np.arange(longest, dtype=np.int32)
        added = np.array(starts, np.int32)[:, None] + steps
        added[steps >= np.array(counts)[:, None]] = -1
        self.positions = np.concatenate([self.positions, added], axis=1)
        self._compact()

    def _compact(self) -> None:
        """Remove the holes where they are a third of the cache."""
        longest = max(self.lengths)
        if self.positions is None or self.width - longest < max(MAX_HOLES, longest // 2):
            return
        self._rows.forget()
        # Right-aligned, so that the longest ends where the next call begins.
        sources = []
        positions = np.full((len(self), longest), -1, np.int32)
        for number, length in enumerate(self.lengths):
            used: list[int] = np.flatnonzero(self.positions[number] >= 0).tolist()
            sources.append([used[0]] * (longest - length) + used)
            positions[number, longest - length :] = np.arange(length)
        move_positions(self.cache, 0, sources)
        set_width(self.cache, longest, self.width)
        self.width = longest
        self.positions = positions if min(self.lengths) < longest else None


def pad_left(
    texts: Sequence[Sequence[int]], device: torch.device
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Texts in one call: (B, T) int64 ids; mask and positions, None where all are equally long."""
    longest = max(map(len, texts))
    padding = torch.tensor([[longest - len(text)] for text in texts], device="cpu")
    ids = torch.tensor([[*[0] * (longest - len(text)), *text] for text in texts], device=device)
    if not padding.any():
        return ids, None, None
    steps = torch.arange(longest, device="cpu").expand(len(texts), -1)
    return ids, (steps >= padding).long().to(device), (steps - padding).clamp(min=0).to(device)


def set_width(cache: Any, width: int, now: int) -> None:
    """Drop all cache positions from `width` on; `now` are in use."""
    if isinstance(cache, StackedCache):
        cache.set_width(width)
    else:
        crop_layers(cache, width, now)


def move_positions(cache: Any, start: int, sources: Sequence[Sequence[int]]) -> None:
    """Copy cache positions of each sequence to `start`, `start`+1, ... in every layer.

    Sequences with fewer sources than others get undefined values after theirs.
    """
    if isinstance(cache, StackedCache):
        cache.move_positions(start, sources)
    else:
        move_in_layers(cache, start, sources)


def select_sequences(cache: Any, sequences: list[int]) -> None:
    """Keep the sequences of these indices; one may be kept several times."""
    if isinstance(cache, StackedCache):
        cache.select_sequences(sequences)
    else:
        select_in_layers(cache, sequences)
