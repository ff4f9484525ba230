"""Data that a drafter keeps for each sequence that it serves."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from lattice_bpd.decode.state.sequence import DecodeState

T = TypeVar("T")


class PerSequence(Generic[T]):
    """One value for each sequence, dropped with its sequence.

    So one drafter can serve several sequences at once. Copies and pickles are empty, because they
    have none of the sequences.

    Args:
        make: returns the value of a new sequence; a function or method that pickles.
    """

    def __init__(self, make: Callable[[DecodeState], T]) -> None:
        self._make = make
        # By id: states compare by value, so they have no hash.
        self._values: dict[int, tuple[weakref.ref[DecodeState], T]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Without values."""
        return type(self), (self._make,)

    def of(self, state: DecodeState) -> T:
        """The value of a sequence, made if there is none."""
        held = self._values.get(id(state))
        return self.renew(state) if held is None or held[0]() is not state else held[1]

    def renew(self, state: DecodeState) -> T:
        """A new value that replaces the sequence's old one."""
        key, values = id(state), self._values

        def forget(gone: weakref.ref[DecodeState]) -> None:
            if key in values and values[key][0] is gone:
                del values[key]

        value = self._make(state)
        values[key] = (weakref.ref(state, forget), value)
        return value

    def __len__(self) -> int:
        """The number of sequences that still exist."""
        return len(self._values)
