"""The KV cache of the texts of a batch: row b holds positions 0 .. length[b] - 1 of text b.

    row 0   a b c d e f | x y     a call writes its tokens after each text; what is not accepted
    row 1   g h | x y             stays there, unseen, until the next call writes over it
    row 2   a b c d e f | z y     a branch: row 0 again, with another of its drafts

A text never moves, and has neither padding nor holes: a cache position is a position of the text.
Texts of one length are read without a mask; others need four-dimensional masks, which hide what is
beyond the end of each. One text alone is a slice of its buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from lattice_bpd.verify.cache import check_cache, is_empty
from lattice_bpd.verify.row_buffers import (
    Call,
    Copy,
    LayerParts,
    RowLayer,
    Stack,
    group_layers,
    move_by_index,
    stack_parts,
    zeros,
)

_SPARE = 64  # positions of branches beyond those of a call


class Rows(Cache):
    """Keys and values of B texts, in all layers.

    Attributes:
        lengths: tokens of each text; the next one has this position.
        width: tokens of the longest row of the next call.
        is_even: whether all rows of the next call have as many.
        recorded: calls of a fixed shape on these buffers; None: none.
    """

    recorded: Any = None

    def __init__(
        self, layers: list[Any], stacks: list[Stack], lengths: Sequence[int], call: Call
    ) -> None:
        super().__init__(layers=layers)
        self._stacks, self.call = stacks, call
        self._branches: list[tuple[int, int]] = []  # of rows from B on: text, tokens shared with it
        self._set_lengths(lengths)

    width = property(attrgetter("call.width"))
    is_even = property(attrgetter("call.is_even"))

    @classmethod
    def from_cache(
        cls, cache: Any, lengths: Sequence[int] | None = None, num_free: int = 0
    ) -> Any:  # fmt: skip
        """The texts of a cache of transformers, padded on the left where they differ in length.

        Args:
            cache: its keys and values are copied; Rows are returned themselves.
            lengths: tokens of each text; None: the cache has no padding.
            num_free: positions that can be appended without a copy.

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
        call, stacks = Call(), []
        width = int(cache.get_seq_length())
        for numbers, parts in group_layers(layers):
            rows = len(parts[0][0])
            shifts = [width - length for length in lengths] if lengths else [0] * rows
            if parts[0][0].shape[2] != width:  # of an image
                stacks.append(Stack([stack_parts(part, [0] * rows, 0) for part in parts]))
            else:
                stacks.append(Stack([stack_parts(part, shifts, num_free) for part in parts]))
            for index, number in enumerate(numbers):
                layers[number] = RowLayer(stacks[-1], index, call)
        count = len(stacks[0].buffers[0][0])
        return cls(layers, stacks, lengths or [width] * count, call)

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
        self.extend(map(len, accepted))

    def move_nodes(self, starts: Tensor, nodes: Tensor) -> None:
        """Copy nodes of a tree-attention call down, without values from the host.

        Args:
            starts: (R,) int64, tokens of each text before the call.
            nodes: (R, T) int64, for node 0, 1, .. T - 1 of each text the one that takes its
                position.
        """
        starts = starts[:, None]
        steps = torch.arange(nodes.shape[1], device=nodes.device)
        for stack in self._stacks:
            if stack.is_written:
                move_by_index(stack.buffers, starts + nodes, starts + steps)

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
        self.extend(counts)

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
        call, layers, stacks = Call(is_fixed=is_fixed), list(self.layers), {}
        for number, layer in enumerate(self.layers):
            if isinstance(layer, RowLayer):
                if layer.stack not in stacks:
                    rows = [buffer[:, first : first + count] for buffer in layer.stack.buffers]
                    stacks[layer.stack] = Stack(rows)
                    stacks[layer.stack].is_written = layer.stack.is_written
                layers[number] = RowLayer(stacks[layer.stack], layer.number, call)
        return Rows(layers, list(stacks.values()), [length] * count, call)

    def empty_like(self, rows: int, positions: int) -> Rows:
        """Other buffers of the same layers, for calls that write to all of them."""
        new = self.part(0, 1, 0)
        for stack in new._stacks:
            stack.buffers = [
                zeros(part, (len(part), rows, part.shape[2], positions, part.shape[4]))
                for part in stack.buffers
            ]
            stack.is_written = True
        return new

    def save(self, row: int, length: int) -> list[LayerParts]:
        """A copy of the first keys, values, .. of a row in each layer; () in those without any."""
        return [
            tuple(
                buffer[layer.number, row : row + 1, :, :length].clone()
                for buffer in layer.stack.buffers
            )
            if isinstance(layer, RowLayer)
            else ()
            for layer in self.layers
        ]

    def load(self, saved: Sequence[LayerParts], row: int, length: int) -> None:
        """Copy the first positions of what `save` returned into a row."""
        layers: list[Any] = self.layers
        for layer, parts in zip(layers, saved, strict=True):
            if parts:
                for buffer, part in zip(layer.stack.buffers, parts, strict=True):
                    buffer[layer.number, row, :, :length] = part[0, :, :length]

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

    def extend(self, counts: Iterable[int]) -> None:
        """Keep so many tokens of the last call after each text, which are there already."""
        pairs = zip(self.lengths, counts, strict=True)
        self._set_lengths([length + count for length, count in pairs])

    def set_texts(self, lengths: Sequence[int]) -> None:
        """Set the tokens of B texts in the first B rows, which may be others than before."""
        self._branches = []
        self._set_lengths(lengths)

    def _set_lengths(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)
        self.call.set_starts(self.lengths)
