"""Constraints from acceptors over token labels, determinized on demand."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.draft.rescore_fst import acceptor_bytes
from lattice_bpd_constraints.automaton_state import MergedStates
from lattice_bpd_constraints.protocol import Mask

_MAGIC = 2125659606
_VERSION = 2
_KNOWN_PROPERTIES = 0x3  # expanded, mutable; readers compute the others
_HEADER = struct.Struct("<iiQqqq")
_STATE = struct.Struct("<fq")
_ARC = np.dtype([("input", "<i4"), ("output", "<i4"), ("weight", "<f4"), ("next", "<i4")])


def write_acceptor(
    final: npt.NDArray[np.float32], arcs: list[list[tuple[int, float, int]]]
) -> bytes:
    """Serialize an acceptor whose start is state 0.

    Args:
        final: (states,) costs, +inf for states that are not final.
        arcs: (label, cost, next state) of the arcs of each state.

    Returns:
        The bytes that `write_to_string` of a `pywrapfst.VectorFst` returns.
    """
    parts = [struct.pack("<i", _MAGIC), _string(b"vector"), _string(b"standard")]
    count = sum(map(len, arcs))
    parts.append(_HEADER.pack(_VERSION, 0, _KNOWN_PROPERTIES, 0, len(final), count))
    for cost, outgoing in zip(final.tolist(), arcs, strict=True):
        parts.append(_STATE.pack(cost, len(outgoing)))
        rows = [(label, label, weight, state) for label, weight, state in outgoing]
        parts.append(np.array(rows, _ARC).tobytes())
    return b"".join(parts)


def _string(text: bytes) -> bytes:
    return struct.pack("<i", len(text)) + text


_WHERE = "FstConstraint"


class FstConstraint:
    """The texts that an acceptor over token labels accepts.

    The acceptor may have cycles, epsilon arcs and several arcs with one label. Finite weights are
    ignored; arcs and final states with infinite weight do not exist. States from which no final
    state is reachable are trimmed, so that a text never reaches a dead end.

    Args:
        acceptor: a `pywrapfst` FST over standard arcs, or the bytes that `write_to_string` of a
            VectorFst returns. Labels are token id + 1, 0 is epsilon.
        vocab_size: V of the target.
        end_token_ids: tokens that end a text, allowed only in final states.

    Raises:
        TypeError: neither an FST nor bytes.
        ValueError: bytes that are not an FST, a transducer, labels outside the vocabulary, or an
            acceptor that accepts no text.

    Source: subset construction, Rabin and Scott 1959, computed lazily.
    """

    def __init__(
        self, acceptor: Any, vocab_size: int, *, end_token_ids: Collection[int] = ()
    ) -> None:
        self.vocab_size, self.end_token_ids = vocab_size, frozenset(end_token_ids)
        self.learned: dict[frozenset[int], MergedStates] = {}
        start, self._final, self._arcs = _read_acceptor(acceptor, vocab_size)
        self._useful = _find_useful(self._arcs, self._final)
        if start not in self._useful:
            raise ValueError(
                f"{_WHERE}: the acceptor accepts no text; expected a path from its start to a "
                "final state"
            )
        self._states: dict[frozenset[int], FstState] = {}
        self._start = self._close([start])

    @classmethod
    def from_arcs(
        cls,
        arcs: Iterable[tuple[int, int | None, int]],
        final: Collection[int],
        vocab_size: int,
        *,
        end_token_ids: Collection[int] = (),
    ) -> FstConstraint:
        """Make a constraint from a list of arcs.

        Args:
            arcs: (state, token id or None for epsilon, next state); state 0 is the start.
            final: states where a text may end.
            vocab_size: V of the target.
            end_token_ids: see the class.

        Raises:
            ValueError: a negative state, or as the class.
        """
        listed = list(arcs)
        states = {0, *final, *(s for source, _, end in listed for s in (source, end))}
        if min(states) < 0:
            raise ValueError(f"{_WHERE}: found state {min(states)}; expected 0 and above")
        rows: list[list[tuple[int, float, int]]] = [[] for _ in range(max(states) + 1)]
        for source, token, end in listed:
            rows[source].append((0 if token is None else token + 1, 0.0, end))
        costs = [0.0 if state in final else np.inf for state in range(len(rows))]
        data = write_acceptor(np.array(costs, np.float32), rows)
        return cls(data, vocab_size, end_token_ids=end_token_ids)

    def start(self) -> FstState:
        """See Constraint."""
        return self._start

    def show(self, token_ids: Sequence[int]) -> str:
        """See Constraint."""
        return f"token ids {list(token_ids)}"

    def _close(self, sources: Iterable[int]) -> FstState:
        """The epsilon closure of `sources`, as one state."""
        seen = {source for source in sources if source in self._useful}
        stack = list(seen)
        while stack:
            for label, end in self._arcs[stack.pop()]:
                if label == 0 and end in self._useful and end not in seen:
                    seen.add(end)
                    stack.append(end)
        members = frozenset(seen)
        if members not in self._states:
            self._states[members] = FstState(self, members, len(self._states))
        return self._states[members]


class FstState:
    """A set of acceptor states; equal sets are the same object."""

    def __init__(self, constraint: FstConstraint, members: frozenset[int], number: int) -> None:
        self._constraint = constraint
        self._number = number
        self._next: dict[int, set[int]] = {}  # by token id
        for member in sorted(members):
            for label, end in constraint._arcs[member]:
                if label > 0 and end in constraint._useful:
                    self._next.setdefault(label - 1, set()).add(end)
        self._accepting = any(constraint._final[member] for member in members)
        self._mask: Mask | None = None

    @property
    def key(self) -> Hashable:
        """The number of the state; equal keys mean the same state."""
        return self._number

    @property
    def accepting(self) -> bool:
        """See ConstraintState."""
        return self._accepting

    def allowed_tokens(self) -> Mask:
        """See ConstraintState."""
        if self._mask is None:
            self._mask = np.zeros(self._constraint.vocab_size, np.bool_)
            self._mask[list(self._next)] = True
            self._mask.flags.writeable = False
        return self._mask

    def advance(self, token_id: int) -> FstState | None:
        """See ConstraintState."""
        members = self._next.get(token_id)
        return None if members is None else self._constraint._close(members)

    def expected_tokens(self) -> list[int]:
        """The only token that may follow, unless the text may end here."""
        return list(self._next) if len(self._next) == 1 and not self._accepting else []


def _read_acceptor(
    acceptor: Any, vocab_size: int
) -> tuple[int, list[bool], list[list[tuple[int, int]]]]:
    """Start state (-1 for none), which states are final, and (label, next state) of their arcs."""
    try:
        start, final, offsets, labels, ends = _core.read_acceptor(acceptor_bytes(_WHERE, acceptor))
    except ValueError as error:
        raise ValueError(f"{_WHERE}: {error}") from None
    invalid = labels[labels > vocab_size]
    if len(invalid):
        raise ValueError(
            f"{_WHERE}: an arc has label {int(invalid[0])}; expected 0 for epsilon, or token id + "
            f"1 in 1..{vocab_size}; build the acceptor over the target's token ids"
        )
    arcs = list(zip(labels.tolist(), ends.tolist(), strict=True))
    rows = [arcs[first:last] for first, last in itertools.pairwise(offsets.tolist())]
    return start, final.astype(bool).tolist(), rows


def _find_useful(arcs: list[list[tuple[int, int]]], final: list[bool]) -> set[int]:
    """The coaccessible states: those from which a final state is reachable."""
    sources: dict[int, list[int]] = {}
    for state, outgoing in enumerate(arcs):
        for _, end in outgoing:
            sources.setdefault(end, []).append(state)
    useful = {state for state, is_final in enumerate(final) if is_final}
    stack = list(useful)
    while stack:
        for state in sources.get(stack.pop(), ()):
            if state not in useful:
                useful.add(state)
                stack.append(state)
    return useful
