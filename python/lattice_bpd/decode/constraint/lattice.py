"""A lattice intersected with a constraint, slot by slot.

    slot          1            2                     3
    states        s0 --a--> s1 --b--> s3 ..          each state takes its own best tokens among
                     --c--> s2 --d--> s3 ..          those that it allows

Where every slot has one state, what is allowed does not depend on the path: the slots are masked,
and the lattice stays a sausage. Elsewhere it becomes an acceptor, a state for each slot and each
state of the constraint.

In an acceptor a token scores the log of its share among the candidates of its state, as the target
chooses among what is allowed at a place, and does not look ahead. So a token without a rival costs
nothing, and a text that ends early is not ranked for its length.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd.decode.constraint.acceptor_bytes import write_acceptor
from lattice_bpd.decode.constraint.place import MergedPlaces, Place
from lattice_bpd.lattice.logits import select_top_k

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]
_Level = dict[Hashable, tuple[Place, float]]  # by key: the place, and the best path's score to it


@dataclass
class _Arc:
    """One token behind one state of one slot.

    Attributes:
        source: key of its state.
        token_id: the token.
        logit: of the head.
        share: log of its share among the candidates of its state.
        score: of the best path through it so far.
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

    def acceptor(self, scale: float = 1.0) -> bytes:
        """As an acceptor for `rescore_fst`: weights are -scale * share, labels token id + 1."""
        numbers: dict[tuple[int, Hashable], int] = {}

        def number(slot: int, key: Hashable) -> int:
            behind_last = slot == len(self.slots)
            return numbers.setdefault((slot, None if behind_last else key), len(numbers))

        leaving: dict[int, list[tuple[int, float, int]]] = {}
        for slot, arcs in enumerate(self.slots):
            for arc in arcs:
                row = leaving.setdefault(number(slot, arc.source), [])
                target = number(slot + 1, arc.target)
                row.append((arc.token_id + 1, -scale * arc.share, target))
        rows = [leaving.get(state, []) for state in range(len(numbers))]
        final: Any = np.array([np.inf if row else 0.0 for row in rows], np.float32)
        return write_acceptor(final, rows)

    def fill_candidates(self, token_ids: Int32Array, scores: Float32Array) -> None:
        """As a sausage, which may hold paths that the constraint does not allow if it `depends`.

        Args:
            token_ids: (H, k) to be filled; slots that no text reaches get token 0.
            scores: (H, k) to be filled, -inf behind the candidates.
        """
        token_ids[:], scores[:] = 0, -np.inf
        scores[:, 0] = 0.0
        for slot, arcs in enumerate(self.slots):
            best: dict[int, float] = {}
            for arc in arcs:
                score = arc.share if self.depends else arc.logit
                best[arc.token_id] = max(score, best.get(arc.token_id, -math.inf))
            ranked = sorted(best.items(), key=lambda item: (-item[1], item[0]))[: len(scores[0])]
            token_ids[slot, : len(ranked)] = [token for token, _ in ranked]
            scores[slot, : len(ranked)] = [score for _, score in ranked]


def intersect(
    place: Place, merged: MergedPlaces, logits: Float32Array, top_k: int, where: str
) -> Intersection:
    """Expand the constraint over the slots of a lattice.

    Each slot keeps the top_k arcs of the best paths, and the best arc of each of its states.

    Args:
        place: where the text stands, the exact token behind it.
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
        slots.append(arcs)
        if slot + 1 < len(logits):
            level = _follow(arcs, level, merged, exact=slot == 0)
    return Intersection(slots, depends)


def _find_arcs(level: _Level, row: Float32Array, top_k: int, where: str) -> list[_Arc]:
    """The arcs of one slot, best paths first."""
    going = [(key, place, score) for key, (place, score) in level.items() if len(place.token_ids)]
    if not going:
        return []
    masks: Any = np.stack([place.mask for _, place, _ in going])
    masked = np.where(masks, row, np.float32(-np.inf))
    found = select_top_k(masked, top_k, log_softmax=False, where=where)
    arcs: list[_Arc] = []
    for (key, place, before), token_ids, logits in zip(
        going, found.token_ids[0].tolist(), found.scores[0].tolist(), strict=True
    ):
        count = min(top_k, len(place.token_ids), sum(logit > -math.inf for logit in logits))
        if count == 0:  # the head has masked all that may follow
            token_ids, logits, count = [int(place.token_ids[0])], [0.0], 1
        total = logits[0] + math.log(sum(math.exp(z - logits[0]) for z in logits[:count]))
        for token, logit in zip(token_ids[:count], logits, strict=False):
            share = logit - total
            arcs.append(_Arc(key, token, logit, share, before + share))
    if len(going) == 1:
        return arcs
    arcs.sort(key=lambda arc: (-arc.score, arc.token_id))
    first = {arc.source: number for number, arc in reversed(list(enumerate(arcs)))}
    return [arc for n, arc in enumerate(arcs) if n < top_k or first[arc.source] == n]


def _follow(arcs: list[_Arc], level: _Level, merged: MergedPlaces, *, exact: bool) -> _Level:
    """The states behind the arcs, each with the score of its best path; exact without merging."""
    behind: _Level = {}
    for arc in arcs:
        place = level[arc.source][0]
        if exact:
            found = place.advance(arc.token_id)
            found = None if found is None else merged.merge(found)
        else:
            found = merged.advance(place, arc.token_id)
        assert found is not None, "a token that is allowed has a state behind it"
        arc.target = found.key
        score = max(arc.score, behind[found.key][1]) if found.key in behind else arc.score
        behind[found.key] = (found, score)
    return behind
