"""Caches for batched verification: a row per draft, reused from call to call."""

from __future__ import annotations

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
