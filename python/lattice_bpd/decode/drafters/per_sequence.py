"""What a drafter notes of each sequence that it serves."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from lattice_bpd.decode.state.sequence import DecodeState

T = TypeVar("T")


class BySequence(Generic[T]):
    """One note for each sequence; it goes when its sequence does.

    So one drafter may serve several sequences at once, each as if it were alone.

    A copy or a pickle has no notes, since it has none of their sequences.

    Args:
        make: gives the note of a sequence that is new; a function or method that pickles.
    """

    def __init__(self, make: Callable[[DecodeState], T]) -> None:
        self._make = make
        # By id: states compare by value, so they have no hash.
        self._notes: dict[int, tuple[weakref.ref[DecodeState], T]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Without notes."""
        return type(self), (self._make,)

    def of(self, state: DecodeState) -> T:
        """The note of a sequence, made if there is none."""
        held = self._notes.get(id(state))
        return self.renew(state) if held is None or held[0]() is not state else held[1]

    def renew(self, state: DecodeState) -> T:
        """A new note in place of the sequence's old one."""
        key, notes = id(state), self._notes

        def forget(gone: weakref.ref[DecodeState]) -> None:
            if key in notes and notes[key][0] is gone:
                del notes[key]

        note = self._make(state)
        notes[key] = (weakref.ref(state, forget), note)
        return note

    def __len__(self) -> int:
        """The number of sequences that are still there."""
        return len(self._notes)
