"""The KV cache of several sequences that accept different numbers of tokens.

Every call appends the same number of cache positions to all sequences. A sequence that accepted
fewer tokens than another has holes, which the mask hides:

    cache position   0  1  2  3 | 4  5  6 | 7 ..
    sequence 0       .  a  b  c | d  e  f |         . left padding of the prompt
    sequence 1       a  b  c  d | e  .  . |         . hole

so accepted prefixes are moved only by a compaction, when holes are a third of the cache. One
sequence alone never has holes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import StaticCache

from lattice_bpd.verify.cache import get_width, move_positions, select_sequences, set_width
from lattice_bpd.verify.stacked_cache import StackedCache

_SPARE = 64  # positions beyond those of the current call, so that buffers last for several calls


class RepeatedRows:
    """Buffers for batched verification.

    Positions that a row shares with its sequence are copied once: a call copies only those that
    were appended to the cache since the previous call.
    """

    def __init__(self) -> None:
        self._buffers: StackedCache | None = None  # of all rows
        self._rows: StackedCache | None = None  # of the last call
        self._sequences: list[int] = []  # of each row that was filled
        self._num_shared = 0  # positions that those rows share with their sequences

    def repeat(self, cache: StackedCache, sequences: list[int], num_free: int) -> StackedCache:
        """A cache of R rows over this object's buffers, valid for one call.

        Args:
            cache: of B sequences.
            sequences: the sequence that each of R rows repeats.
            num_free: positions that the call writes.
        """
        rows, filled = len(sequences), self._sequences
        buffers = self._reserve(cache, rows, cache.width + num_free)
        if buffers is self._buffers and sequences[: len(filled)] == filled[:rows]:
            _fill(buffers, cache, filled, 0, self._num_shared)
            sequences = [*sequences, *filled[rows:]]
            _fill(buffers, cache, sequences, len(filled), 0)
        else:
            _fill(buffers, cache, sequences, 0, 0)
            self._rows = None
        if self._rows is None or self._rows.keys.shape[1] != rows:
            keys, values = (part.narrow(1, 0, rows) for part in (buffers.keys, buffers.values))
            self._rows = cache.over(keys, values, sequences[:rows])
        self._rows.set_width(cache.width)
        self._buffers, self._sequences, self._num_shared = buffers, sequences, cache.width
        return self._rows

    def append_to(self, cache: StackedCache, rows: list[int], count: int) -> None:
        """Append to each sequence of the cache the first positions that the last call wrote.

        Args:
            cache: the cache that was repeated.
            rows: the row of each sequence.
            count: positions to append.
        """
        assert self._buffers is not None
        cache.append_rows(self._buffers, rows, count)

    def keep_positions(self, width: int) -> None:
        """Note that the sequences may change from cache position `width` on."""
        self._num_shared = min(self._num_shared, width)

    def forget(self) -> None:
        """Note that all sequences change: the next call copies them whole."""
        self._buffers, self._rows, self._sequences, self._num_shared = None, None, [], 0

    def _reserve(self, cache: StackedCache, rows: int, width: int) -> StackedCache:
        """The buffers, or new ones if they are too small."""
        if self._buffers is not None:
            _, max_rows, _, capacity, _ = self._buffers.keys.shape
            if rows <= max_rows and width <= capacity:
                return self._buffers
            rows = max(rows, max_rows)
        self.forget()  # frees the old buffers before new ones are allocated
        return StackedCache(*cache.new_buffers(rows, width + _SPARE), cache.width)


def _fill(
    buffers: StackedCache, cache: StackedCache, sequences: list[int], row: int, start: int
) -> None:
    """Copy the cache's positions from `start` on to the rows from `row` on."""
    if start < cache.width and row < len(sequences):
        buffers.copy_positions(cache, sequences[row:], row, start, cache.width - start)


MAX_HOLES = 64  # fewer are never compacted


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
        self.width = get_width(cache)
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


def to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """The array as a tensor; faster than torch.tensor of lists, and without a copy on the host."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.to(device)
