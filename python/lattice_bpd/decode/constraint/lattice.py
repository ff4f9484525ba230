"""A lattice intersected with a constraint, slot by slot.

    slot          1            2                     3
    states        s0 --a--> s1 --b--> s3 ..          each state takes its own best tokens among
                     --c--> s2 --d--> s3 ..          those that it allows

Where every slot has one state, what is allowed does not depend on the path: the slots are masked,
and the lattice stays a sausage. Elsewhere it is an acceptor as well, with a state for each slot and
each state of the constraint; as a sausage it then holds all tokens that some path allows.

In the acceptor a token scores the log of its share among the candidates of its state, since the
target chooses among what is allowed at a place and does not look ahead. So a token without a rival
costs nothing.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_bpd.decode.constraint.acceptor_bytes import write_acceptor
from lattice_bpd.decode.constraint.place import MergedPlaces, Place
from lattice_bpd.lattice.logits import select_top_k

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]
_MOST_ARCS = 4  # of a slot for each of its k tokens
_Level = dict[Hashable, tuple[Place, float]]  # by key: the place, and the best path's score to it


class _Arc(NamedTuple):
    """One token behind one state of one slot.

    Attributes:
        source: key of its state.
        token_id: the token.
        logit: of the head.
        share: log of its share among the candidates of its state.
        score: sum of the shares of the best path through it.
        target: key of the state behind it; None behind the last slot.
    """

    source: Hashable
    token_id: int
    logit: float
    share: float
    score: float
    target: Hashable = None


@dataclass
class Intersection:
    """A sequence's lattice under its constraint.

    Attributes:
        slots: the arcs of each slot; fewer than the heads have where every text is over before.
        depends: whether what a slot allows depends on the path.
    """

    slots: list[list[_Arc]]
    depends: bool

    def acceptor(self) -> bytes:
        """As an acceptor for `rescore_fst`: weights are -share, labels token id + 1."""
        numbers: dict[tuple[int, Hashable], int] = {}

        def number(slot: int, key: Hashable) -> int:
            behind_last = slot == len(self.slots)
            return numbers.setdefault((slot, None if behind_last else key), len(numbers))

        leaving: dict[int, list[tuple[int, float, int]]] = {}
        for slot, arcs in enumerate(self.slots):
            for arc in arcs:
                row = leaving.setdefault(number(slot, arc.source), [])
                row.append((arc.token_id + 1, -arc.share, number(slot + 1, arc.target)))
        rows = [leaving.get(state, []) for state in range(len(numbers))]
        final: Any = np.array([np.inf if row else 0.0 for row in rows], np.float32)
        return write_acceptor(final, rows)

    def fill_candidates(self, token_ids: Int32Array, scores: Float32Array) -> None:
        """As a sausage of the tokens that some path allows, with the heads' logits.

        Args:
            token_ids: (H, k) to be filled; slots that no text reaches get token 0.
            scores: (H, k) to be filled, -inf behind the candidates.
        """
        token_ids[:], scores[:] = 0, -np.inf
        scores[:, 0] = 0.0
        for slot, arcs in enumerate(self.slots):
            logits = {arc.token_id: arc.logit for arc in arcs}
            ranked = sorted(logits.items(), key=lambda item: (-item[1], item[0]))
            ranked = ranked[: scores.shape[1]]
            token_ids[slot, : len(ranked)] = [token for token, _ in ranked]
            scores[slot, : len(ranked)] = [logit for _, logit in ranked]


def intersect(
    place: Place, merged: MergedPlaces, logits: Float32Array, top_k: int, where: str
) -> Intersection:
    """Expand the constraint over the slots of a lattice.

    Each slot keeps the arcs of the best paths with top_k different tokens, 4 * top_k arcs at most,
    and the best arc of each of its states.

    Args:
        place: where the text stands, the exact token counted in.
        merged: places met before.
        logits: (H, V) of the heads.
        top_k: k.
        where: the caller's name, for error messages.

    Returns:
        Intersection.

    Raises:
        ValueError: NaN or +inf among the logits of tokens that are allowed.
    """
    merged.shrink()
    level: _Level = {place.key: (place, 0.0)}
    slots: list[list[_Arc]] = []
    depends = False
    for slot, row in enumerate(logits):
        depends = depends or len(level) > 1
        arcs = _find_arcs(level, row, top_k, where)
        if not arcs:
            break
        if slot + 1 < len(logits):
            arcs, level = _follow(arcs, level, merged, exact=slot == 0)
        slots.append(arcs)
    return Intersection(slots, depends)


def _find_arcs(level: _Level, row: Float32Array, top_k: int, where: str) -> list[_Arc]:
    """The arcs of one slot, best paths first."""
    going = [(key, place, score) for key, (place, score) in level.items() if len(place.token_ids)]
    if not going:
        return []
    masks: Any = np.stack([place.mask for _, place, _ in going])
    masked = np.where(masks, row, np.float32(-np.inf))
    found = select_top_k(masked, top_k, log_softmax=False, where=where)
    token_ids, logits = found.token_ids[0], found.scores[0].astype(np.float64)
    for number in np.flatnonzero(np.isneginf(logits[:, 0])):  # the head masks all that may follow
        token_ids[number, 0], logits[number, 0] = going[number][1].token_ids[0], 0.0
    shares = logits - logits[:, :1]
    shares -= np.log(np.exp(shares).sum(axis=1, keepdims=True))
    scores = shares + np.array([[before] for _, _, before in going])
    kept = _choose_arcs(token_ids, scores, top_k)
    values = [array.ravel()[kept].tolist() for array in (token_ids, logits, shares, scores)]
    sources = [going[place // token_ids.shape[1]][0] for place in kept]
    return [_Arc(*arc) for arc in zip(sources, *values, strict=True)]


def _choose_arcs(token_ids: Int32Array, scores: npt.NDArray[np.float64], top_k: int) -> list[int]:
    """Places of the arcs to keep in (states, k) arrays, by falling score."""
    width = scores.shape[1]
    seen: set[int] = set()
    order = np.argsort(-scores, axis=None, kind="stable")
    kept = []
    for rank, place in enumerate(order[: np.count_nonzero(np.isfinite(scores))].tolist()):
        token = int(token_ids.flat[place])
        new = token not in seen
        if place % width == 0 or (rank < _MOST_ARCS * top_k and (not new or len(seen) < top_k)):
            kept.append(place)
            seen.add(token)
    return kept


def _follow(
    arcs: list[_Arc], level: _Level, merged: MergedPlaces, *, exact: bool
) -> tuple[list[_Arc], _Level]:
    """The arcs with their targets, and the next level; `exact` takes no merged place's word."""
    targeted: list[_Arc] = []
    behind: _Level = {}
    for arc in arcs:
        place = level[arc.source][0]
        found = place.advance(arc.token_id) if exact else merged.advance(place, arc.token_id)
        if found is None:
            continue
        found = merged.merge(found) if exact else found
        targeted.append(arc._replace(target=found.key))
        behind.setdefault(found.key, (found, arc.score))  # the first arc is of the best path
    return targeted, behind
