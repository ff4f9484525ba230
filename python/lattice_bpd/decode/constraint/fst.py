"""Constraints from acceptors over token labels, made deterministic while they are walked."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from lattice_bpd.decode.constraint.acceptor_bytes import Acceptor, read_acceptor, write_acceptor
from lattice_bpd.decode.constraint.place import MergedPlaces
from lattice_bpd.decode.constraint.protocol import Mask

_WHERE = "FstConstraint"


class FstConstraint:
    """The texts that an acceptor over token labels accepts.

    It may have cycles, epsilon arcs and several arcs of one label; weights are not looked at, but
    for infinite ones, which are no arcs and no final states. What leads to no final state is left
    out, so that a text never ends up where nothing may follow.

    Args:
        acceptor: a `pywrapfst` FST over standard arcs, or the bytes that `write_to_string` of a
            VectorFst gives. Labels are token id + 1, 0 is epsilon.
        vocab_size: V of the target.
        end_token_ids: tokens that end a text, allowed in final states alone.

    Raises:
        TypeError: neither an FST nor bytes.
        ValueError: bytes that are no FST, a transducer, labels outside the vocabulary, or an
            acceptor that accepts no text.

    Source: subset construction, Rabin and Scott 1959, done lazily.
    """

    def __init__(
        self, acceptor: Any, vocab_size: int, *, end_token_ids: Collection[int] = ()
    ) -> None:
        found = read_acceptor(_bytes_of(acceptor))
        self.vocab_size, self.end_token_ids = vocab_size, frozenset(end_token_ids)
        self.learned: dict[frozenset[int], MergedPlaces] = {}
        self._arcs = [_labels_of(arcs, vocab_size) for arcs in found.arcs]
        self._final = np.isfinite(found.final).tolist()
        self._useful = _find_useful(found, self._final)
        if found.start < 0 or found.start not in self._useful:
            raise ValueError(
                f"{_WHERE}: the acceptor accepts no text; expected a path from its start to a "
                "final state"
            )
        self._states: dict[frozenset[int], FstState] = {}
        self._start = self._close([found.start])

    @classmethod
    def from_arcs(
        cls,
        arcs: Iterable[tuple[int, int | None, int]],
        final: Collection[int],
        vocab_size: int,
        *,
        end_token_ids: Collection[int] = (),
    ) -> FstConstraint:
        """The constraint of an acceptor that is listed arc by arc.

        Args:
            arcs: (state, token id or None for epsilon, next state); state 0 is the start.
            final: states where a text may end.
            vocab_size: V of the target.
            end_token_ids: see the class.

        Raises:
            ValueError: a negative state, or as the class.
        """
        listed = list(arcs)
        states = {0, *final, *(s for source, _, target in listed for s in (source, target))}
        if min(states) < 0:
            raise ValueError(f"{_WHERE}: found state {min(states)}; expected 0 and above")
        rows: list[list[tuple[int, float, int]]] = [[] for _ in range(max(states) + 1)]
        for source, token, target in listed:
            rows[source].append((0 if token is None else token + 1, 0.0, target))
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
        """The set of states that these and epsilon arcs reach, as one state."""
        seen = {source for source in sources if source in self._useful}
        stack = list(seen)
        while stack:
            for label, target in self._arcs[stack.pop()]:
                if label == 0 and target in self._useful and target not in seen:
                    seen.add(target)
                    stack.append(target)
        members = frozenset(seen)
        if members not in self._states:
            self._states[members] = FstState(self, members, len(self._states))
        return self._states[members]


class FstState:
    """A set of the acceptor's states; equal sets are the same object."""

    def __init__(self, constraint: FstConstraint, members: frozenset[int], number: int) -> None:
        self._constraint = constraint
        self._number = number
        self._targets: dict[int, set[int]] = {}
        for member in sorted(members):
            for label, target in constraint._arcs[member]:
                if label > 0 and target in constraint._useful:
                    self._targets.setdefault(label - 1, set()).add(target)
        self._accepting = any(constraint._final[member] for member in members)
        self._mask: Mask | None = None

    @property
    def key(self) -> Hashable:
        """Exact: states of equal keys are the same."""
        return self._number

    @property
    def accepting(self) -> bool:
        """See ConstraintState."""
        return self._accepting

    def allowed_tokens(self) -> Mask:
        """See ConstraintState."""
        if self._mask is None:
            self._mask = np.zeros(self._constraint.vocab_size, np.bool_)
            self._mask[list(self._targets)] = True
            self._mask.flags.writeable = False
        return self._mask

    def advance(self, token_id: int) -> FstState | None:
        """See ConstraintState."""
        targets = self._targets.get(token_id)
        return None if targets is None else self._constraint._close(targets)

    def expected_tokens(self) -> list[int]:
        """The one token that may follow, where the text cannot end instead."""
        return list(self._targets) if len(self._targets) == 1 and not self._accepting else []


def _bytes_of(acceptor: Any) -> bytes:
    if isinstance(acceptor, bytes):
        return acceptor
    if not hasattr(acceptor, "write_to_string"):
        raise TypeError(
            f"{_WHERE}: acceptor is a {type(acceptor).__name__}; expected a pywrapfst FST, or the "
            "bytes of one"
        )
    import pywrapfst

    if acceptor.arc_type() == "standard":
        vector = acceptor.fst_type() == "vector"
        acceptor = acceptor.copy() if vector else pywrapfst.convert(acceptor, "vector")
        acceptor.set_input_symbols(None)
        acceptor.set_output_symbols(None)
    return bytes(acceptor.write_to_string())


def _labels_of(arcs: Any, vocab_size: int) -> list[tuple[int, int]]:
    """(label, next state) of the arcs of one state that can be taken."""
    kept = arcs[arcs["weight"] < np.inf]
    wrong = kept["input"][(kept["input"] < 0) | (kept["input"] > vocab_size)]
    if len(wrong):
        raise ValueError(
            f"{_WHERE}: an arc has label {int(wrong[0])}; expected 0 for epsilon, or token id + 1 "
            f"in 1..{vocab_size}; build the acceptor over the target's token ids"
        )
    return list(zip(kept["input"].tolist(), kept["next"].tolist(), strict=True))


def _find_useful(acceptor: Acceptor, final: list[bool]) -> set[int]:
    """The states from which a final one can be reached."""
    before: dict[int, list[int]] = {}
    for state, arcs in enumerate(acceptor.arcs):
        for target in arcs["next"][arcs["weight"] < np.inf].tolist():
            before.setdefault(target, []).append(state)
    useful = {state for state, is_final in enumerate(final) if is_final}
    stack = list(useful)
    while stack:
        for state in before.get(stack.pop(), ()):
            if state not in useful:
                useful.add(state)
                stack.append(state)
    return useful
