"""Rows that repeat the sequences of a cache, one for each draft, kept from call to call."""

from __future__ import annotations

from lattice_bpd.verify.stacked_cache import StackedCache

_SPARE = 64  # slots beyond those of the call at hand, so that buffers serve a while


class RepeatedRows:
    """Buffers for calls in rows.

    What a row has in common with its sequence is copied once: a call adds only the slots that the
    cache has got since the last one.
    """

    def __init__(self) -> None:
        self._buffers: StackedCache | None = None  # of all rows
        self._rows: StackedCache | None = None  # the last call's
        self._sequences: list[int] = []  # of each row that was filled
        self._known = 0  # slots that those rows share with their sequences

    def repeat(self, cache: StackedCache, sequences: list[int], room: int) -> StackedCache:
        """A cache of R rows, row r like sequence `sequences[r]`, with `room` free slots.

        Args:
            cache: of B sequences.
            sequences: R numbers.
            room: slots that the call at hand will write.

        Returns:
            A cache over this object's buffers, for one call.
        """
        rows, filled = len(sequences), self._sequences
        buffers = self._with_room(cache, rows, cache.width + room)
        if buffers is self._buffers and sequences[: len(filled)] == filled[:rows]:
            _fill(buffers, cache, filled, 0, self._known)
            sequences = [*sequences, *filled[rows:]]
            _fill(buffers, cache, sequences, len(filled), 0)
        else:
            _fill(buffers, cache, sequences, 0, 0)
            self._rows = None
        if self._rows is None or self._rows.keys.shape[1] != rows:
            keys, values = (part.narrow(1, 0, rows) for part in (buffers.keys, buffers.values))
            self._rows = cache.over(keys, values, sequences[:rows])
        self._rows.set_width(cache.width)
        self._buffers, self._sequences, self._known = buffers, sequences, cache.width
        return self._rows

    def append_to(self, cache: StackedCache, rows: list[int], count: int) -> None:
        """Append to each of the cache's sequences what the last call wrote to a row.

        Args:
            cache: the one that was repeated.
            rows: the row of each sequence.
            count: slots that are kept.
        """
        assert self._buffers is not None
        cache.append_rows(self._buffers, rows, count)

    def keep_slots(self, width: int) -> None:
        """The sequences may change from slot `width` on."""
        self._known = min(self._known, width)

    def forget(self) -> None:
        """The sequences change; a call in rows will begin anew."""
        self._buffers, self._rows, self._sequences, self._known = None, None, [], 0

    def _with_room(self, cache: StackedCache, rows: int, width: int) -> StackedCache:
        """The buffers, or new ones."""
        if self._buffers is not None:
            _, has_rows, _, has_slots, _ = self._buffers.keys.shape
            if rows <= has_rows and width <= has_slots:
                return self._buffers
            rows = max(rows, has_rows)
        self.forget()  # the old ones go before the new ones come
        return StackedCache(*cache.new_buffers(rows, width + _SPARE), cache.width)


def _fill(
    buffers: StackedCache, cache: StackedCache, sequences: list[int], row: int, slot: int
) -> None:
    """Copy the cache's slots from `slot` on to the rows from `row` on."""
    if slot < cache.width and row < len(sequences):
        buffers.copy_slots(cache, sequences[row:], row, slot, cache.width - slot)
