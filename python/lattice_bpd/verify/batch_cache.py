"""The KV cache of several sequences that progress at different speeds.

Every call appends as many slots to all sequences; each keeps what it accepted. Where another one
accepted more, a sequence has holes:

    slots        0  1  2  3 | 4  5  6 | 7 ..
    sequence 0   .  a  b  c | d  e  f |         . left padding of the prompt
    sequence 1   a  b  c  d | e  .  . |         . hole: the mask hides it

so no accepted prefix is ever moved, but for a clean-up when holes are a third of the cache. One
sequence alone never has holes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import StaticCache

from lattice_bpd.verify.cache import get_width, move_slots, select_sequences, set_width
from lattice_bpd.verify.repeated_rows import RepeatedRows
from lattice_bpd.verify.source_cache import Source, SourceCache
from lattice_bpd.verify.stacked_cache import StackedCache

MAX_HOLES = 64  # fewer are never cleaned up


class BatchCache:
    """A target's cache over B sequences, and which slots of it are whose.

    Args:
        cache: what the target's calls read and extend, with B rows.
        lengths: tokens of each sequence that the cache covers; None: one sequence, all slots.

    Attributes:
        width: slots in use.
        lengths: tokens of each sequence; the next one has this position.
        capacity: slots of a static cache; None where the cache grows.
        positions: (B, width) int32, the position in its text that each slot holds; -1 for padding
            and holes. None where all slots hold tokens.
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
            slots = np.arange(self.width, dtype=np.int32)
            padding = self.width - np.array(self.lengths, np.int32)
            self.positions = np.maximum(slots[None] - padding[:, None], -1)

    def __len__(self) -> int:
        """B."""
        return len(self.lengths)

    def source_of(self, number: int) -> Source | None:
        """The encoded source of a sequence; None where the target has no encoder."""
        cache = self.cache
        return cache.source.row(number) if isinstance(cache, SourceCache) else None

    def call_size(self, wanted: int) -> int:
        """Tokens of a row that holds `wanted`: a static cache asks for few different shapes."""
        if self.capacity is None:
            return wanted
        self._call_size = max(self._call_size, wanted)
        if self.width + self._call_size > self.capacity:
            raise ValueError(
                f"verify: the static cache has {self.capacity} slots, {self.width} of them in use; "
                f"expected room for {self._call_size} more; make it longer by the drafts of a call"
            )
        return self._call_size

    def free_slots(self, size: int) -> int:
        """Slots of a static cache behind a call of `size` tokens."""
        return 0 if self.capacity is None else self.capacity - self.width - size

    def keep_nodes(self, accepted: list[list[int]], size: int) -> None:
        """After a call with `size` more slots, keep those of the accepted nodes, by number.

        Nodes that stand first and in order are kept where they are; others are copied down.
        """
        counts = [len(nodes) for nodes in accepted]
        longest, start = max(counts), self.width
        for nodes in accepted:
            if nodes[-1] >= len(nodes):  # they rise, so others are 0, 1, 2, ..
                # node 0 stays, whatever else is accepted
                moved = [[start + node for node in nodes[1:]] for nodes in accepted]
                move_slots(self.cache, start + 1, moved)
                break
        set_width(self.cache, start + longest, start + size)
        self._extend(counts, longest)

    def repeated(self, sequences: list[int], room: int) -> Any:
        """A cache of R rows, row r a copy of sequence `sequences[r]`, for one call."""
        if isinstance(self.cache, StackedCache):
            return self._rows.repeat(self.cache, sequences, room)
        select_sequences(self.cache, sequences)
        return self.cache

    def keep_rows(
        self, repeated: Any, rows: list[int], counts: list[int], size: int, *, repeats: bool
    ) -> None:
        """After a call in rows, keep the first so many slots of the chosen ones.

        Args:
            repeated: what `repeated` gave, or this cache itself where no row was repeated.
            rows: the row of each sequence.
            counts: accepted tokens of each sequence.
            size: slots that the call added.
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
        """Forget all but the first tokens of each sequence, one token or more."""
        positions = self.positions
        if positions is None:
            positions = np.tile(np.arange(self.width, dtype=np.int32), (len(self), 1))
        positions = np.where(positions < np.array(lengths)[:, None], positions, np.int32(-1))
        width = int(np.flatnonzero((positions >= 0).any(axis=0))[-1]) + 1
        set_width(self.cache, width, self.width)
        self._rows.keep_slots(width)
        self.width, self.lengths = width, list(lengths)
        self.positions = None if min(lengths) == width else positions[:, :width]
        self._clean_up()

    def keep_sequences(self, sequences: list[int]) -> None:
        """Let the others go; one may come several times."""
        self._rows.forget()
        select_sequences(self.cache, sequences)
        self.lengths = [self.lengths[number] for number in sequences]
        if self.positions is not None:
            self.positions = self.positions[sequences]
            self._clean_up()

    def _extend(self, counts: list[int], longest: int) -> None:
        """Note that each sequence now covers so many more tokens in `longest` more slots."""
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
        self._clean_up()

    def _clean_up(self) -> None:
        """Move all sequences together where holes are a third of the cache."""
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
        move_slots(self.cache, 0, sources)
        set_width(self.cache, longest, self.width)
        self.width = longest
        self.positions = positions if min(self.lengths) < longest else None


def to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """The array as a tensor; quicker than torch.tensor of lists, and without a copy on the host."""
    found = torch.from_numpy(array)
    return found if device.type == "cpu" else found.to(device)
