"""A KV cache that rolls back cheaply: all layers in two buffers with room at the end.

A `DynamicCache` copies itself whenever it grows. Here new keys are written behind the old ones, a
rejected draft is forgotten by lowering a number, and an accepted path is moved by one copy for
all layers, of its own few positions only.
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
from lattice_bpd.verify.device_slots import copy_on_device, move_on_device

_ROOM = 256  # slots by which a full buffer grows at least


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
        """(B, heads, width, D) what the layer holds, for models that look at it (Mllama)."""
        return self.stack.keys[self.number].narrow(2, 0, self.width)

    @keys.setter
    def keys(self, value: Tensor | None) -> None:
        """Nothing: the base class begins with None."""

    @property
    def values(self) -> Tensor:
        """(B, heads, width, D') as `keys`."""
        return self.stack.values[self.number].narrow(2, 0, self.width)

    @values.setter
    def values(self, value: Tensor | None) -> None:
        """Nothing: the base class begins with None."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the buffers are there."""

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Write (B, heads, T, D) keys and values behind the old ones, and give all of them."""
        start, self.width = self.width, self.width + key_states.shape[2]
        keys, values, new_keys, new_values = self.stack.parts(start, self.width)
        new_keys[self.number].copy_(key_states)
        new_values[self.number].copy_(value_states)
        return keys[self.number], values[self.number]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Slots after the next call, and offset of the first."""
        return self.width + query_length, 0

    def get_seq_length(self) -> int:
        """Slots in use."""
        return self.width

    def get_max_length(self) -> int:
        """-1: it grows."""
        return -1


class StackedCache(Cache):
    """Keys and values of all layers.

    Attributes:
        keys: (L, B, heads, capacity, D) float.
        values: (L, B, heads, capacity, D') float.
    """

    def __init__(self, keys: Tensor, values: Tensor, width: int) -> None:
        self.keys, self.values, self.width = keys, values, width
        self._views: tuple[Tensor, list[npt.NDArray[np.uint8]]] | None = None
        self._parts: tuple[tuple[int, int, Tensor], Parts] | None = None
        super().__init__(layers=[StackedLayer(self, number) for number in range(keys.shape[0])])

    @classmethod
    def from_cache(cls, cache: Cache, room: int) -> StackedCache | None:
        """The same keys and values with `room` free slots; None where layers differ in shape."""
        if isinstance(cache, StackedCache):
            cache.make_room(cache.width + room)
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
            buffer = first.new_empty((len(layers), batch, heads, width + room, size))
            for number, layer in enumerate(layers):
                buffer[number, :, :, :width] = getattr(layer, name)
            parts.append(buffer)
        return cls(parts[0], parts[1], width)

    def parts(self, start: int, end: int) -> Parts:
        """Keys and values up to `end` of each layer, (B, heads, end, D), and those from `start` on.

        Cut for all layers at once when the first of them asks: it takes a call of torch for each
        cut, which are dearer than the copies where models are small.
        """
        if self._parts is not None:
            (known_start, known_end, buffer), parts = self._parts
            if known_start == start and known_end == end and buffer is self.keys:
                return parts
        self.make_room(end)
        seen = [buffer.narrow(3, 0, end) for buffer in (self.keys, self.values)]
        new = [part.narrow(3, start, end - start) for part in seen]
        found = tuple(_by_layer(part) for part in (*seen, *new))
        self._parts = (start, end, self.keys), found
        return found

    def make_room(self, width: int) -> None:
        """Move to larger buffers unless `width` slots fit."""
        capacity = self.keys.shape[3]
        if width <= capacity:
            return
        room = max(width - capacity, _ROOM, capacity // 2)
        self.keys = torch.cat([self.keys, _empty_like(self.keys, room)], dim=3)
        self.values = torch.cat([self.values, _empty_like(self.values, room)], dim=3)

    def set_width(self, width: int) -> None:
        """Forget all slots from `width` on."""
        self.width = width
        layers: list[Any] = self.layers
        for layer in layers:
            layer.width = width

    def move_slots(self, start: int, sources: Sequence[Sequence[int]]) -> None:
        """Copy slots to `start`, `start`+1, ... in every layer.

        Args:
            start: first slot to write.
            sources: of each of B sequences, which slots to copy there.
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
        """Keep the sequences of these numbers; one may come several times."""
        index = self.index(sequences)
        self.keys = self.keys.index_select(1, index)
        self.values = self.values.index_select(1, index)

    def index(self, sequences: Sequence[int]) -> Tensor:
        """Numbers of sequences as torch selects by them, (R,) int64."""
        return torch.tensor(sequences, device=self.keys.device)

    def new_buffers(self, rows: int, slots: int) -> tuple[Tensor, Tensor]:
        """Room for keys and values of so many rows, nothing written yet."""

        def room(buffer: Tensor) -> Tensor:
            layers, _, heads, _, size = buffer.shape
            return buffer.new_empty((layers, rows, heads, slots, size))

        return room(self.keys), room(self.values)

    def over(self, keys: Tensor, values: Tensor, sequences: Sequence[int]) -> StackedCache:
        """A cache as wide as this one over other buffers, row r of which repeats sequences[r]."""
        del sequences
        return StackedCache(keys, values, self.width)

    def repeat_sequences(self, sequences: Sequence[int], room: int) -> StackedCache:
        """A new cache of R rows, row r a copy of `sequences[r]`, with `room` free slots."""
        copies, index = self.new_buffers(len(sequences), self.width + room), self.index(sequences)
        for copy, buffer in zip(copies, (self.keys, self.values), strict=True):
            copy[:, :, :, : self.width] = buffer[:, :, :, : self.width].index_select(1, index)
        return self.over(*copies, sequences)

    def append_rows(self, other: StackedCache, rows: Sequence[int], count: int) -> None:
        """Append `count` slots of other's rows, one for each of B, where this cache ends."""
        start = self.width
        self.make_room(start + count)
        self.copy_slots(other, rows, 0, start, count)
        self.set_width(start + count)

    def copy_slots(
        self, other: StackedCache, rows: Sequence[int], first_row: int, start: int, count: int
    ) -> None:
        """Copy `count` slots of other's rows, from `start` on, to rows from `first_row` on."""
        if self.keys.device.type == "cpu":
            _core.copy_slots(other._bytes(), rows, self._bytes(), first_row, start, count)
            return
        for source, buffer in ((other.keys, self.keys), (other.values, self.values)):
            copy_on_device(source, rows, buffer, first_row, start, count)


def _by_layer(buffer: Tensor) -> tuple[Tensor, ...]:
    """The entries of the first axis; autograd forbids writing to those that `unbind` gives."""
    if torch.is_grad_enabled():
        return tuple(buffer[number] for number in range(len(buffer)))
    return buffer.unbind(0)


def _empty_like(buffer: Tensor, room: int) -> Tensor:
    layers, batch, heads, _, size = buffer.shape
    return buffer.new_empty((layers, batch, heads, room, size))
