"""The KV cache of the texts of a batch: row b holds positions 0 .. length[b] - 1 of text b.

    row 0   a b c d e f | x y     a call writes its tokens after each text; what is not accepted
    row 1   g h | x y             stays there, unseen, until the next call writes over it
    row 2   a b c d e f | z y     a branch: row 0 again, with another of its drafts

A text never moves, and has neither padding nor holes: a cache position is a position of the text.
Texts of one length are read without a mask; others need four-dimensional masks, which hide what is
beyond the end of each. One text alone is a slice of its buffers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from lattice_bpd import _core
from lattice_bpd.verify.cache import check_cache, is_empty

_MIN_GROWTH = 256  # positions that full buffers grow by
_SPARE = 64  # positions of branches beyond those of a call
Copy = tuple[int, int, int, int]  # row, another row, first position, the one after the last


class _Call:
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


class _Stack:
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

    def append(self, layer: int, part: int, new: Tensor, call: _Call) -> Tensor:
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

    def _parts(self, call: _Call, size: int) -> Any:
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
        split = _by_index if torch.is_grad_enabled() else torch.unbind
        views = [buffer[:, :rows, :, :end] for buffer in self.buffers]
        after = None if start < 0 else [split(part[:, :, :, start:]) for part in views]
        parts = [split(part) for part in views], after
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

    def __init__(self, stack: _Stack, number: int, call: _Call) -> None:
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


class Rows(Cache):
    """Keys and values of B texts, in all layers.

    Attributes:
        lengths: tokens of each text; the next one has this position.
        width: tokens of the longest row of the next call.
        is_even: whether all rows of the next call have as many.
        capacity: positions of a cache of fixed size, all of which every call reads; else None.
        recorded: calls of a fixed shape on these buffers; None: none.
    """

    recorded: Any = None

    def __init__(
        self, layers: list[Any], stacks: list[_Stack], lengths: Sequence[int], call: _Call
    ) -> None:
        super().__init__(layers=layers)
        self._stacks, self.call = stacks, call
        self.capacity: int | None = None
        self._branches: list[tuple[int, int]] = []  # of rows from B on: text, tokens shared with it
        self._size = 1  # of calls on a cache of fixed size
        self._set_lengths(lengths)

    width = property(attrgetter("call.width"))
    is_even = property(attrgetter("call.is_even"))

    @classmethod
    def from_cache(
        cls, cache: Any, lengths: Sequence[int] | None = None, num_free: int = 0,
        capacity: int | None = None,
    ) -> Any:  # fmt: skip
        """The texts of a cache of transformers, padded on the left where they differ in length.

        Args:
            cache: its keys and values are copied; Rows are returned themselves.
            lengths: tokens of each text; None: the cache has no padding.
            num_free: positions that can be appended without a copy.
            capacity: of a cache of fixed size, for one text.

        Raises:
            ValueError: an empty cache, or one that cannot be rolled back; see `check_cache`.
        """
        if isinstance(cache, Rows):
            return cache
        check_cache(cache)
        if all(map(is_empty, cache.layers)):
            raise ValueError(
                "verify: the cache covers no token; expected one that `read_prompts` of the "
                "target, or a call with the text before the drafts, has filled"
            )
        layers: list[Any] = list(cache.layers)
        call, stacks = _Call(is_fixed=capacity is not None), []
        width = int(cache.get_seq_length())
        for numbers, parts in _group_layers(layers):
            rows = len(parts[0][0])
            shifts = [width - length for length in lengths] if lengths else [0] * rows
            if parts[0][0].shape[2] != width:  # of an image
                stacks.append(_Stack([_stack(part, [0] * rows, 0) for part in parts]))
            else:
                free = num_free if capacity is None else capacity - width
                stacks.append(_Stack([_stack(part, shifts, free) for part in parts]))
            for index, number in enumerate(numbers):
                layers[number] = RowLayer(stacks[-1], index, call)
        count = len(stacks[0].buffers[0][0])
        own = cls(layers, stacks, lengths or [width] * count, call)
        own.capacity = capacity
        return own

    def source_of(self, number: int) -> Any:  # noqa: ARG002
        """The encoded source of a text; None: the target has no encoder."""
        return None

    @property
    def buffers(self) -> list[Tensor]:
        """Keys, values, .. of all layers by shape, (L, R, heads, capacity, D) each."""
        return [part for stack in self._stacks for part in stack.buffers]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and positions of the buffers."""
        first = self._stacks[0].buffers[0].shape
        return first[1], first[3]

    @property
    def position_bytes(self) -> int:
        """Memory of a position of a text."""
        return sum(part[:, :1, :, :1].nbytes for part in self.buffers)

    def reserve(self, rows: int, positions: int) -> None:
        """Make the buffers hold so many rows and positions."""
        for stack in self._stacks:
            stack.reserve(rows, positions, self.width)

    def reads(self, size: int) -> int:
        """Positions that a call of `size` tokens of each row reads."""
        return self.width + size if self.capacity is None else self.capacity

    def call_size(self, num_tokens: int) -> int:
        """Tokens of each row of a call; of a fixed size it never shrinks, to limit recompilation.

        Raises:
            ValueError: the cache of fixed size is full.
        """
        if self.capacity is None:
            return num_tokens
        self._size = size = max(self._size, num_tokens)
        start = self.width
        if start + size > self.capacity:
            raise ValueError(
                f"verify: the static cache has {self.capacity} positions, {start} of them in use; "
                f"expected {size} free ones; make it longer by the drafts of a call"
            )
        for stack in self._stacks:  # outside of what is compiled
            self.call.index(size, stack.buffers[0].device)
        return size

    def branch(self, texts: Sequence[int]) -> None:
        """Let the next call have R rows.

        Args:
            texts: whose text each of them repeats; 0, 1, .., B - 1 in the first B, which are the
                texts themselves.
        """
        branches, copies, count = [], [], len(self.lengths)
        for number, text in enumerate(texts[count:]):
            length, start = self.lengths[text], 0
            if number < len(self._branches) and self._branches[number][0] == text:
                start = self._branches[number][1]
            branches.append((text, length))
            copies.append((text, count + number, start, length))
        for stack in self._stacks:
            positions, used = (self.width + _SPARE, self.width) if stack.is_written else (0, None)
            stack.reserve(len(texts), positions, used)
        self.copy(copies)
        self._branches[: len(branches)] = branches
        self.call.set_starts([self.lengths[text] for text in texts])

    def keep_nodes(self, accepted: Sequence[Sequence[int]]) -> None:
        """After a tree-attention call keep the accepted nodes of each text, given by index.

        Nodes 0, 1, 2, .. stay where they are; others are copied down.
        """
        # indices increase, so the last one is the number of those before where they are 0, 1, 2, ..
        if any(nodes[-1] >= len(nodes) for nodes in accepted):
            pairs = list(zip(self.lengths, accepted, strict=True))
            starts = [length + 1 for length, _ in pairs]  # node 0 is always accepted, never moves
            sources = [[length + node for node in nodes[1:]] for length, nodes in pairs]
            for stack in self._stacks:
                if stack.is_written:
                    stack.move(starts, sources)
        self._extend(map(len, accepted))

    def keep_rows(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        """After a batched-verification call keep the first tokens of a row for each text.

        Args:
            rows: the row of each text.
            counts: accepted tokens of each.
        """
        triples = zip(rows, counts, self.lengths, strict=True)
        self.copy(
            [(row, text, length, length + count)
             for text, (row, count, length) in enumerate(triples) if row != text]
        )  # fmt: skip
        self._extend(counts)

    def roll_back(self, lengths: Sequence[int]) -> None:
        """Keep the first `lengths[b]` tokens of each text."""
        self._branches = [(text, min(shared, lengths[text])) for text, shared in self._branches]
        self._set_lengths(lengths)

    def keep_sequences(self, texts: Sequence[int]) -> None:
        """Keep these texts, in this order; one may be kept several times."""
        moved = [(old, new) for new, old in enumerate(texts) if old != new]
        if len(texts) > self.shape[0] or any(new in texts[new + 1 :] for _, new in moved):
            for stack in self._stacks:
                stack.select(texts)
        else:  # no row that is copied later is written to
            self.copy([(old, new, 0, self.lengths[old]) for old, new in moved])
        self.set_texts([self.lengths[text] for text in texts])

    def part(self, first: int, count: int, length: int, *, is_fixed: bool = False) -> Rows:
        """The same memory of `count` rows, as texts of which `length` tokens are known."""
        call, layers, stacks = _Call(is_fixed=is_fixed), list(self.layers), {}
        for number, layer in enumerate(self.layers):
            if isinstance(layer, RowLayer):
                if layer.stack not in stacks:
                    rows = [buffer[:, first : first + count] for buffer in layer.stack.buffers]
                    stacks[layer.stack] = _Stack(rows)
                    stacks[layer.stack].is_written = layer.stack.is_written
                layers[number] = RowLayer(stacks[layer.stack], layer.number, call)
        return Rows(layers, list(stacks.values()), [length] * count, call)

    def empty_like(self, rows: int, positions: int) -> Rows:
        """Other buffers of the same layers, for calls that write to all of them."""
        new = self.part(0, 1, 0)
        for stack in new._stacks:
            stack.buffers = [
                _zeros(part, (len(part), rows, part.shape[2], positions, part.shape[4]))
                for part in stack.buffers
            ]
            stack.is_written = True
        return new

    def save(self, row: int, length: int) -> list[Tensor]:
        """A copy of the first positions of a row in all buffers."""
        return [part[:, row, :, :length].clone() for part in self.buffers]

    def load(self, saved: Sequence[Tensor], row: int, length: int) -> None:
        """Copy the first positions of what `save` returned into a row."""
        for part, own in zip(self.buffers, saved, strict=True):
            part[:, row, :, :length] = own[:, :, :length]

    def read_text(self, row: int, length: int) -> list[tuple[Tensor, ...]]:
        """A copy of the first keys and values of a text in each layer; () in those without any."""
        return [
            tuple(part[row : row + 1, :, :length].clone() for part in (layer.keys, layer.values))
            if isinstance(layer, RowLayer)
            else ()
            for layer in self.layers
        ]

    def write_to(self, cache: Any) -> None:
        """Replace what the cache of transformers holds that these texts were taken from."""
        for layer, own in zip(cache.layers, self.layers, strict=True):
            if isinstance(own, RowLayer):
                layer.keys, layer.values = own.keys, own.values
                if len(own.stack.buffers) > 2:
                    layer.indexer_keys = own.read(2)[:, 0]

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy positions of rows to other rows, one copy after the other."""
        for stack in self._stacks:
            whole = [(old, new, 0, stack.capacity) for old, new, _, _ in copies]
            if copies:
                stack.copy(copies if stack.is_written else whole)

    def _extend(self, counts: Iterable[int]) -> None:
        pairs = zip(self.lengths, counts, strict=True)
        self._set_lengths([length + count for length, count in pairs])

    def set_texts(self, lengths: Sequence[int]) -> None:
        """Set the tokens of B texts in the first B rows, which may be others than before."""
        self._branches = []
        self._set_lengths(lengths)

    def _set_lengths(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)
        self.call.set_starts(self.lengths)


def _group_layers(layers: Sequence[Any]) -> list[tuple[list[int], list[tuple[Tensor, ...]]]]:
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


def _stack(parts: Sequence[Tensor], shifts: Sequence[int], num_free: int) -> Tensor:
    """A buffer (L, R, heads, T + num_free, D) of (R, heads, T, D) tensors without their padding.

    It has zeros where nothing was copied, since a NaN that a mask hides would reach the output.
    """
    rows, heads, width, size = parts[0].shape
    buffer = _zeros(parts[0], (len(parts), rows, heads, width + num_free, size))
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
    new = _zeros(old, (layers, rows, heads, capacity, size))
    new[:, :count, :, :used] = old[:, :, :, :used]
    return new


def _zeros(like: Tensor, shape: Sequence[int]) -> Tensor:
    """On a CPU memory of the system's zero pages, which takes no time before it is written to."""
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    memory = np.zeros(math.prod(shape) * like.itemsize, np.uint8)
    return torch.from_numpy(memory).view(like.dtype).view(shape)


def _by_index(buffer: Tensor) -> tuple[Tensor, ...]:
    """The entries of the first axis; autograd forbids writes to the views of `unbind`."""
    return tuple(buffer[number] for number in range(len(buffer)))


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
    for buffer in buffers:
        layers, _, heads, _, size = buffer.shape
        source, target = (
            part[None, :, None, :, None].expand(layers, -1, heads, -1, size)
            for part in index.unbind(1)
        )
        used = buffer[:, : len(pairs)]
        used.scatter_(3, target, used.gather(3, source))


def copy_on_device(buffers: Sequence[Tensor], copies: Sequence[Copy]) -> None:
    """Copy positions of rows to other rows in all layers; as rows were before, if one is both."""
    for (begin, end), group in groupby(copies, key=lambda one: one[2:]):
        old, new = torch.tensor([one[:2] for one in group], device=buffers[0].device).unbind(1)
        for buffer in buffers:
            part = buffer[:, :, :, begin:end]
            part[:, new] = part[:, old]
