"""Where a constrained text stands, the tokens that end it counted in."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

import numpy as np
import numpy.typing as npt

from lattice_bpd.decode.constraint.protocol import ConstraintState, Mask

_MOST_BYTES = 1 << 25  # of the masks that are kept for drafting

OVER = "over"


class Place:
    """A state of the constraint and the tokens that may follow it.

    Stop tokens are allowed exactly where the constraint accepts, whatever it says of them itself.

    Args:
        state: of the constraint.
        stop_token_ids: tokens that end the text.
        over: whether one of them was written.
    """

    __slots__ = ("_count", "_key", "_mask", "_next", "merged_next", "over", "state", "stops")

    def __init__(
        self, state: ConstraintState, stop_token_ids: Collection[int], *, over: bool = False
    ) -> None:
        self.state, self.stops, self.over = state, stop_token_ids, over
        self._key: Hashable = OVER if over else None
        self._mask: Mask | None = None
        self._count: int | None = None
        self._next: dict[int, Place | None] = {}
        self.merged_next: dict[int, Place | None] = {}  # of MergedPlaces

    @property
    def key(self) -> Hashable:
        """Places of equal keys allow the same tokens."""
        if self._key is None:
            self._key = self.state.key
        return self._key

    @property
    def mask(self) -> Mask:
        """(V,) bool, the tokens that may follow."""
        if self._mask is None:
            self._mask = self._find_mask()
        return self._mask

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:
        """The tokens that may follow, rising."""
        return np.flatnonzero(self.mask)

    @property
    def count(self) -> int:
        """How many tokens may follow."""
        if self._count is None:
            self._count = int(np.count_nonzero(self.mask))
        return self._count

    @property
    def ended(self) -> bool:
        """Whether the text is complete and nothing can follow, not even a stop token."""
        return self.over or (self.state.accepting and self.count == 0)

    def advance(self, token_id: int) -> Place | None:
        """The place behind one more token; None where it is not allowed."""
        if token_id not in self._next:
            self._next[token_id] = self.find_next(token_id)
        return self._next[token_id]

    def find_next(self, token_id: int) -> Place | None:
        """The same, anew."""
        if self.over:
            return None
        if token_id in self.stops:
            return Place(self.state, self.stops, over=True) if self.state.accepting else None
        state = self.state.advance(token_id)
        return None if state is None else Place(state, self.stops)

    def expected_tokens(self) -> Sequence[int]:
        """Tokens that are certain or likely to come, as far as the constraint's state tells."""
        return () if self.over else self.state.expected_tokens()

    def forced_end(self) -> Sequence[int]:
        """The stop token, where nothing else can follow."""
        if self.over or not self.state.accepting or self.count != 1:
            return ()
        return (int(self.token_ids[0]),)

    def _find_mask(self) -> Mask:
        allowed = self.state.allowed_tokens()
        if self.over:
            return np.zeros_like(allowed)
        stops = [token for token in self.stops if 0 <= token < len(allowed)]
        if stops:
            allowed = allowed.copy()
            allowed[stops] = self.state.accepting
        return allowed


class MergedPlaces:
    """Places by key, so that drafting meets each, and what comes behind it, but once."""

    def __init__(self) -> None:
        self._places: dict[Hashable, Place] = {}

    def merge(self, place: Place) -> Place:
        """The place that stands for this one: a copy, which keeps no text's places alive."""
        found = self._places.get(place.key)
        if found is None:
            found = Place(place.state, place.stops, over=place.over)
            self._places[place.key] = found
        return found

    def advance(self, place: Place, token_id: int, *, exact: bool = False) -> Place | None:
        """The merged place behind one more token; `exact` takes no other place's word for it."""
        if exact or token_id not in place.merged_next:
            found = place.advance(token_id) if exact else place.find_next(token_id)
            place.merged_next[token_id] = None if found is None else self.merge(found)
        return place.merged_next[token_id]

    def shrink(self, vocab_size: int) -> None:
        """Forget everything once masks of so many tokens are too much."""
        if len(self._places) * vocab_size > _MOST_BYTES:
            self._places.clear()

    def __len__(self) -> int:
        """Number of places."""
        return len(self._places)
