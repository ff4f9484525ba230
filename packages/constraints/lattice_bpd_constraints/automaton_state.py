"""Automaton states of constrained texts, including the end of the text."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

import numpy as np
import numpy.typing as npt

from lattice_bpd_constraints.protocol import ConstraintState, Mask

_MAX_BYTES = 1 << 25  # limit of the masks that MergedStates holds
_STOPPED = "stopped"


class AutomatonState:
    """A constraint state, and whether a stop token has ended the text.

    A stop token is allowed exactly in accepting states, independent of the constraint's own mask.

    Args:
        constraint_state: state of the constraint.
        stop_token_ids: tokens that end the text.
        stopped: whether the last token is one of them.
    """

    __slots__ = (
        "_count",
        "_key",
        "_mask",
        "_next",
        "constraint_state",
        "merged_next",
        "stop_token_ids",
        "stopped",
    )

    def __init__(
        self,
        constraint_state: ConstraintState,
        stop_token_ids: Collection[int],
        *,
        stopped: bool = False,
    ) -> None:
        self.constraint_state, self.stop_token_ids = constraint_state, stop_token_ids
        self.stopped = stopped
        self._key: Hashable = _STOPPED if stopped else None
        self._mask: Mask | None = None
        self._count: int | None = None
        self._next: dict[int, AutomatonState | None] = {}
        self.merged_next: dict[int, AutomatonState | None] = {}  # written by MergedStates

    @property
    def key(self) -> Hashable:
        """States with equal keys allow the same tokens."""
        if self._key is None:
            self._key = self.constraint_state.key
        return self._key

    @property
    def mask(self) -> Mask:
        """(V,) bool, the tokens that may follow."""
        if self._mask is None:
            self._mask = self._find_mask()
        return self._mask

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:
        """The tokens that may follow, ascending."""
        return np.flatnonzero(self.mask)

    @property
    def count(self) -> int:
        """The number of tokens that may follow."""
        if self._count is None:
            self._count = int(np.count_nonzero(self.mask))
        return self._count

    @property
    def ended(self) -> bool:
        """Whether the text is complete and nothing can follow, not even a stop token."""
        return self.stopped or (self.constraint_state.accepting and self.count == 0)

    def advance(self, token_id: int) -> AutomatonState | None:
        """The state after `token_id`; None if the token is not allowed."""
        if token_id not in self._next:
            self._next[token_id] = self.find_next(token_id)
        return self._next[token_id]

    def find_next(self, token_id: int) -> AutomatonState | None:
        """Like `advance`, without the memo, so that the result is not kept alive."""
        if self.stopped:
            return None
        if token_id in self.stop_token_ids:
            if not self.constraint_state.accepting:
                return None
            return AutomatonState(self.constraint_state, self.stop_token_ids, stopped=True)
        state = self.constraint_state.advance(token_id)
        return None if state is None else AutomatonState(state, self.stop_token_ids)

    def expected_tokens(self) -> Sequence[int]:
        """The next tokens that are certain or likely, according to the constraint."""
        return () if self.stopped else self.constraint_state.expected_tokens()

    def forced_stop(self) -> Sequence[int]:
        """The stop token, if no other token may follow."""
        if self.stopped or not self.constraint_state.accepting or self.count != 1:
            return ()
        return (int(self.token_ids[0]),)

    def _find_mask(self) -> Mask:
        allowed = self.constraint_state.allowed_tokens()
        if self.stopped:
            return np.zeros_like(allowed)
        stops = [token for token in self.stop_token_ids if 0 <= token < len(allowed)]
        if stops:
            allowed = allowed.copy()
            allowed[stops] = self.constraint_state.accepting
        return allowed


class MergedStates:
    """States by key, so that drafting computes each state and its successors once."""

    def __init__(self) -> None:
        self._states: dict[Hashable, AutomatonState] = {}

    def merge(self, state: AutomatonState) -> AutomatonState:
        """The representative of this state: a copy, which keeps no states of a text alive."""
        merged = self._states.get(state.key)
        if merged is None:
            merged = AutomatonState(
                state.constraint_state, state.stop_token_ids, stopped=state.stopped
            )
            self._states[state.key] = merged
        return merged

    def advance(
        self, state: AutomatonState, token_id: int, *, exact: bool = False
    ) -> AutomatonState | None:
        """The merged state after `token_id`; None if the token is not allowed.

        Args:
            state: current state.
            token_id: next token.
            exact: recompute it from `state`, also if a state with the same key stored a successor.
        """
        if exact or token_id not in state.merged_next:
            following = state.advance(token_id) if exact else state.find_next(token_id)
            state.merged_next[token_id] = None if following is None else self.merge(following)
        return state.merged_next[token_id]

    def shrink(self, vocab_size: int) -> None:
        """Remove all states once their masks exceed the memory limit."""
        if len(self._states) * vocab_size > _MAX_BYTES:
            self._states.clear()

    def __len__(self) -> int:
        """Number of states."""
        return len(self._states)
