"""A KV cache of two preallocated buffers, which appends and rolls back without copies.

A `DynamicCache` copies itself whenever it grows. Here new keys are written after the old ones, a
rejected draft is dropped by decreasing the width, and an accepted path is moved by one copy of its
positions in all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from lattice_bpd import _core
from lattice_bpd.verify.device_copies import copy_on_device, move_on_device

_MIN_GROWTH = 256  # cache positions that a full buffer grows by


Parts = tuple[tuple[Tensor, ...], ...]  # four of them, each with an entry for each layer


class StackedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer's view of the buffers."""

    is_sliding = False
    is_compileable = False
    is_croppable = True

    def __init__(self, stack: StackedCache, number: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stack, self.number, self.width = stack, number, stack.width
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
        self.keys, self.values, self.width = keys, values, width
        self._views: tuple[Tensor, list[npt.NDArray[np.uint8]]] | None = None
        self._parts: tuple[tuple[int, int, Tensor], Parts] | None = None
        super().__init__(layers=[StackedLayer(self, number) for number in range(keys.shape[0])])

    @classmethod
    def from_cache(cls, cache: Cache, num_free: int) -> StackedCache | None:
        """The same keys and values with free capacity; None if layers differ in shape.

        Args:
            cache: a DynamicCache, or a StackedCache, which is returned itself.
            num_free: positions that can be appended without a copy.
        """
        if isinstance(cache, StackedCache):
            cache.reserve(cache.width + num_free)
            return cache
        layers: list[Any] = cache.layers
        if type(cache) is not DynamicCache or any(
            type(layer) is not DynamicLayer or layer.keys is None for layer in layers
        ):
            return None
        kinds = {
            (part.shape, part.dtype, part.device)
            for layer in layers
            for part in (layer.keys, layer.values)
            if part is not None
        }
        if len({kind[1:] for kind in kinds}) != 1 or len(kinds) > 2:
            return None
        if len({layer.keys.shape for layer in layers}) != 1:
            return None
        width = int(layers[0].keys.shape[2])
        parts = []
        for name in ("keys", "values"):
            first = getattr(layers[0], name)
            batch, heads, _, size = first.shape
            buffer = first.new_empty((len(layers), batch, heads, width + num_free, size))
            for number, layer in enumerate(layers):
                buffer[number, :, :, :width] = getattr(layer, name)
            parts.append(buffer)
        return cls(parts[0], parts[1], width)

    def parts(self, start: int, end: int) -> Parts:
        """Keys and values up to `end` of each layer, (B, heads, end, D), and those from `start` on.

        The views of all layers are created at once, for the first layer of a call: in small models
        creating views with torch takes longer than the copies.
        """
        if self._parts is not None:
            (known_start, known_end, buffer), parts = self._parts
            if known_start == start and known_end == end and buffer is self.keys:
                return parts
        self.reserve(end)
        whole = [buffer.narrow(3, 0, end) for buffer in (self.keys, self.values)]
        new = [part.narrow(3, start, end - start) for part in whole]
        parts = tuple(_by_layer(part) for part in (*whole, *new))
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
        index = self.index(sequences)
        self.keys = self.keys.index_select(1, index)
        self.values = self.values.index_select(1, index)

    def index(self, sequences: Sequence[int]) -> Tensor:
        """Indices of sequences on the cache's device, (R,) int64."""
        return torch.tensor(sequences, device=self.keys.device)

    def new_buffers(self, rows: int, capacity: int) -> tuple[Tensor, Tensor]:
        """Uninitialized buffers for keys and values of so many rows and positions."""
        return _new_empty(self.keys, capacity, rows), _new_empty(self.values, capacity, rows)

    def over(self, keys: Tensor, values: Tensor, sequences: Sequence[int]) -> StackedCache:
        """A cache of this width over other buffers, whose row r repeats sequences[r]."""
        del sequences
        return StackedCache(keys, values, self.width)

    def repeat_sequences(self, sequences: Sequence[int], num_free: int) -> StackedCache:
        """A new cache of R rows, row r a copy of `sequences[r]`, with `num_free` free positions."""
        copies = self.new_buffers(len(sequences), self.width + num_free)
        index = self.index(sequences)
        for copy, buffer in zip(copies, (self.keys, self.values), strict=True):
            copy[:, :, :, : self.width] = buffer[:, :, :, : self.width].index_select(1, index)
        return self.over(*copies, sequences)

    def append_rows(self, other: StackedCache, rows: Sequence[int], count: int) -> None:
        """Append `count` positions of other's rows, one row for each of B sequences."""
        start = self.width
        self.reserve(start + count)
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


def _by_layer(buffer: Tensor) -> tuple[Tensor, ...]:
    """The entries of the first axis; autograd forbids writes to the views of `unbind`."""
    if torch.is_grad_enabled():
        return tuple(buffer[number] for number in range(len(buffer)))
    return buffer.unbind(0)


def _new_empty(buffer: Tensor, positions: int, rows: int | None = None) -> Tensor:
    """An uninitialized buffer like another, with so many positions and rows."""
    layers, batch, heads, _, size = buffer.shape
    rows = batch if rows is None else rows
    return buffer.new_empty((layers, rows, heads, positions, size))
