"""The buffers of KV caches whose rows have their own lengths, and the layers that write there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from lattice_bpd import _core
from lattice_bpd.verify.cache import is_empty

_MIN_GROWTH = 256  # positions that full buffers grow by
Copy = tuple[int, int, int, int]  # row, another row, first position, the one after the last
LayerParts = tuple[Tensor, ...]  # keys, values, .. of a layer, (1, heads, T, D) each; or ()


class Call:
    """Where a call writes; layers share it with their cache instead of referring to the cache.

    In a cycle, memory of a GPU would wait for a garbage collector that does not count it.

    Attributes:
        starts: of each row of the call, the tokens before it.
        width: the most of them.
        is_even: whether all rows have as many.
        is_fixed: whether calls read all positions of the buffers, and write by index.
    """

    def __init__(self, *, is_fixed: bool = False) -> None:
        self.starts: list[int] = []
        self.width, self.is_even, self.is_fixed = 0, True, is_fixed
        self._index: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def set_starts(self, starts: Sequence[int]) -> None:
        """Set where each row's new tokens begin."""
        self.starts, self.width, self._index = list(starts), max(starts), {}
        self.is_even = min(starts) == self.width

    def index(self, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Rows (R, 1) and positions (R, size) of the new tokens, int64."""
        if device not in self._index or self._index[device][1].shape[1] != size:
            starts = torch.tensor(self.starts, device=device)[:, None]
            rows = torch.arange(len(starts), device=device)[:, None]
            self._index[device] = rows, starts + torch.arange(size, device=device)
        return self._index[device]

    def set_index(self, rows: Tensor, positions: Tensor) -> None:
        """Set rows (R, 1) and positions (R, size) of the new tokens of the next call."""
        self._index[rows.device] = rows, positions


class Stack:
    """Buffers of the layers of one shape.

    Attributes:
        buffers: keys, values, and where layers have them keys of an indexer, (L, R, heads,
            capacity, D) each.
        is_written: whether calls add positions; not where layers hold keys of an image.
    """

    def __init__(self, buffers: Sequence[Tensor]) -> None:
        self.buffers, self.is_written = list(buffers), False
        self._views: tuple[tuple[int, int, int, Tensor], Any] | None = None
        self._memory: tuple[Tensor, list[npt.NDArray[np.uint8]]] | None = None

    @property
    def capacity(self) -> int:
        """Positions."""
        return int(self.buffers[0].shape[3])

    def reserve(self, rows: int, positions: int, used: int | None) -> None:
        """Move to larger buffers unless rows and positions fit; `used` positions are kept."""
        _, count, _, capacity, _ = self.buffers[0].shape
        if rows > count or positions > capacity:
            rows, positions = max(rows, count), max(positions, capacity)
            self.buffers = [_grown(old, rows, positions, used) for old in self.buffers]

    def append(self, layer: int, part: int, new: Tensor, call: Call) -> Tensor:
        """Write (R, heads, T, D) new keys after the texts; return all that the call reads."""
        self.is_written = True
        keys: Tensor = self.buffers[part][layer][: len(call.starts)]
        after = None
        if not call.is_fixed:
            whole, after = self._parts(call, new.shape[2])
            keys = whole[part][layer]
        if after is not None:
            after[part][layer].copy_(new)
        elif not call.is_fixed and new.device.type == "cpu" and new.stride(3) == 1:
            rows, heads, size, width = new.shape
            _core.write_slots(
                (rows, heads, size, width * new.itemsize), new.itemsize,
                (new.data_ptr(), *new.stride()[:3]), (keys.data_ptr(), *keys.stride()[:3]),
                self.capacity, call.starts,
            )  # fmt: skip
        else:
            of_row, positions = call.index(new.shape[2], new.device)
            keys[of_row, :, positions] = new.transpose(1, 2)
        return keys

    def _parts(self, call: Call, size: int) -> Any:
        """Views by part and layer: positions that a call reads, and if they are one range writes.

        The views of all layers are created at once, for the first layer of a call: in small models
        creating views with torch takes longer than the copies.
        """
        rows, end = len(call.starts), call.width + size
        start = call.width if call.is_even else -1
        if self._views is not None:
            (*known, buffer), parts = self._views
            if known == [rows, start, end] and buffer is self.buffers[0]:
                return parts
        if end > self.capacity:
            growth = max(_MIN_GROWTH, self.capacity // 2)
            self.reserve(rows, max(end, self.capacity + growth), call.width)
        views = [buffer[:, :rows, :, :end] for buffer in self.buffers]
        after = None if start < 0 else [part[:, :, :, start:].unbind() for part in views]
        parts = [part.unbind() for part in views], after
        self._views = (rows, start, end, self.buffers[0]), parts
        return parts

    def move(self, starts: Sequence[int], sources: Sequence[Sequence[int]]) -> None:
        """Copy positions `sources[b]` of row b in all layers to `starts[b]`, `starts[b]` + 1, .."""
        if self.buffers[0].device.type == "cpu":
            _core.move_slots(self._bytes(), starts, sources)
        else:
            move_on_device(self.buffers, starts, sources)

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows; one may be kept several times."""
        index = torch.tensor(rows, device=self.buffers[0].device)
        self.buffers = [buffer.index_select(1, index) for buffer in self.buffers]

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy positions of rows to other rows in all layers, one copy after the other."""
        if self.buffers[0].device.type == "cpu":
            _core.copy_slots(self._bytes(), copies)
        else:
            copy_on_device(self.buffers, copies)

    def _bytes(self) -> list[npt.NDArray[np.uint8]]:
        """The buffers' memory, (L, R, heads, capacity, bytes) each."""
        if self._memory is None or self._memory[0] is not self.buffers[0]:
            parts = [part.view(torch.uint8).numpy() for part in self.buffers]
            self._memory = self.buffers[0], parts
        return self._memory[1]


class RowLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer's view of the buffers."""

    is_sliding = False
    is_compileable = False

    def __init__(self, stack: Stack, number: int, call: Call) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stack, self.number, self.call = stack, number, call
        self.is_initialized = True

    @property
    def keys(self) -> Tensor:
        """(R, heads, positions, D) the layer's keys, for models that read them (Mllama)."""
        return self.read(0)

    @keys.setter
    def keys(self, value: Tensor | None) -> None:
        """Ignored: the base class sets None initially."""

    @property
    def values(self) -> Tensor:
        """(R, heads, positions, D') as `keys`."""
        return self.read(1)

    @values.setter
    def values(self, value: Tensor | None) -> None:
        """Ignored: the base class sets None initially."""

    def read(self, part: int) -> Tensor:
        """(R, heads, positions, D) keys, values, or keys of the indexer."""
        buffer = self.stack.buffers[part][self.number, : len(self.call.starts)]
        return buffer[:, :, : self.call.width] if self.stack.is_written else buffer

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """No-op: the buffers exist already."""

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Append (R, heads, T, D) keys and values; return all of them."""
        stack, number, call = self.stack, self.number, self.call
        keys = stack.append(number, 0, key_states, call)
        return keys, stack.append(number, 1, value_states, call)

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        """Append (R, T, D) keys of an indexer; return all of them."""
        new = indexer_key_states[:, None]
        return self.stack.append(self.number, 2, new, self.call)[:, 0]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Positions that the next call reads, and offset of the first."""
        return self.call.width + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens of the longest text."""
        return self.call.width

    def get_max_length(self) -> int:
        """-1: it can grow."""
        return -1


def group_layers(layers: Sequence[Any]) -> list[tuple[list[int], list[tuple[Tensor, ...]]]]:
    """Layers with buffers of one shape: their numbers, and their keys, values, ..."""
    groups: dict[Any, list[tuple[int, list[Tensor]]]] = {}
    for number, layer in enumerate(layers):
        if is_empty(layer):
            continue
        parts = [layer.keys, layer.values]
        if getattr(layer, "indexer_keys", None) is not None:
            parts.append(layer.indexer_keys[:, None])
        kind = tuple((part.shape, part.dtype, part.device) for part in parts)
        groups.setdefault(kind, []).append((number, parts))
    return [
        ([number for number, _ in group], list(zip(*(parts for _, parts in group), strict=True)))
        for group in groups.values()
    ]


def stack_parts(parts: Sequence[Tensor], shifts: Sequence[int], num_free: int) -> Tensor:
    """A buffer (L, R, heads, T + num_free, D) of (R, heads, T, D) tensors without their padding.

    It has zeros where nothing was copied, since a NaN that a mask hides would reach the output.
    """
    rows, heads, width, size = parts[0].shape
    buffer = zeros(parts[0], (len(parts), rows, heads, width + num_free, size))
    for number, part in enumerate(parts):
        if not any(shifts):
            buffer[number, :, :, :width] = part
            continue
        for row, shift in enumerate(shifts):
            buffer[number, row, :, : width - shift] = part[row, :, shift:]
    return buffer


def _grown(old: Tensor, rows: int, capacity: int, used: int | None) -> Tensor:
    """A larger buffer, with zeros beyond what is used."""
    layers, count, heads, _, size = old.shape
    new = zeros(old, (layers, rows, heads, capacity, size))
    new[:, :count, :, :used] = old[:, :, :, :used]
    return new


def zeros(like: Tensor, shape: Sequence[int]) -> Tensor:
    """On a CPU memory of the system's zero pages, which takes no time before it is written to."""
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    memory = np.zeros(math.prod(shape) * like.itemsize, np.uint8)
    return torch.from_numpy(memory).view(like.dtype).view(shape)


def move_on_device(
    buffers: Sequence[Tensor], starts: Sequence[int], sources: Sequence[Sequence[int]]
) -> None:
    """Copy positions `sources[b]` of row b to `starts[b]`, `starts[b]` + 1, .. in all layers."""
    longest, pairs = max(map(len, sources)), list(zip(starts, sources, strict=True))
    # A row with fewer sources copies the position before its start to itself.
    index = torch.tensor(
        [[[*row, *[start - 1] * (longest - len(row))],
          [*range(start, start + len(row)), *[start - 1] * (longest - len(row))]]
         for start, row in pairs], device=buffers[0].device,
    )  # fmt: skip
    move_by_index(buffers, *index.unbind(1))


def move_by_index(buffers: Sequence[Tensor], sources: Tensor, targets: Tensor) -> None:
    """Copy positions `sources[b]` of row b to `targets[b]`, both (R, T) int64, in all layers."""
    for buffer in buffers:
        layers, _, heads, _, size = buffer.shape
        source, target = (
            part[None, :, None, :, None].expand(layers, -1, heads, -1, size)
            for part in (sources, targets)
        )
        used = buffer[:, : len(sources)]
        used.scatter_(3, target, used.gather(3, source))


def copy_on_device(buffers: Sequence[Tensor], copies: Sequence[Copy]) -> None:
    """Copy positions of rows to other rows in all layers; as rows were before, if one is both."""
    for (begin, end), group in groupby(copies, key=lambda one: one[2:]):
        old, new = torch.tensor([one[:2] for one in group], device=buffers[0].device).unbind(1)
        for buffer in buffers:
            part = buffer[:, :, :, begin:end]
            part[:, new] = part[:, old]
