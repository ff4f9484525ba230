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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_bpd.decode.constraint.acceptor_bytes import write_acceptor
from lattice_bpd.decode.constraint.place import MergedPlaces, Place
from lattice_bpd.lattice.logits import select_top_k

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int32Array = npt.NDArray[np.int32]
_MOST_ARCS = 4  # of a slot for each of its k tokens
_RANKED = 4  # tokens of a slot, for each of the k, that are looked at before all others
_FEW = 256  # tokens that are ranked faster by themselves than with all others masked


class _Arc(NamedTuple):
    """One token behind one state of one slot.

    Attributes:
        source: the place before it.
        token_id: the token.
        logit: of the head.
        share: log of its share among the candidates of its state.
        target: the place behind it; None behind the last slot.
    """

    source: Place
    token_id: int
    logit: float
    share: float
    target: Place | None


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
        numbers: dict[tuple[int, Place | None], int] = {}

        def number(slot: int, place: Place | None) -> int:
            behind_last = slot == len(self.slots)
            return numbers.setdefault((slot, None if behind_last else place), len(numbers))

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
        ValueError: top_k out of range, NaN or +inf.
    """
    vocab_size = logits.shape[1]
    merged.shrink(vocab_size)
    most = min(_RANKED * top_k, vocab_size) if top_k <= vocab_size else top_k
    ranked = select_top_k(logits, most, log_softmax=False, where=where).token_ids[0]
    level: dict[Place, float] = {place: 0.0}  # with the score of the best path to each
    slots: list[list[_Arc]] = []
    depends = False
    for slot, row in enumerate(logits):
        going = {place: score for place, score in level.items() if place.count}
        depends = depends or len(level) > 1
        if not going:
            break
        last, level, arcs = slot + 1 == len(logits), {}, []
        for source, token, logit, share, score in _find_arcs(going, row, ranked[slot], top_k):
            target = None
            if not last:
                target = merged.advance(source, token, exact=slot == 0)
                if target is None:
                    continue
                level.setdefault(target, score)  # the first arc is of the best path
            arcs.append(_Arc(source, token, logit, share, target))
        slots.append(arcs)
    return Intersection(slots, depends)


def _find_arcs(
    level: dict[Place, float], row: Float32Array, ranked: Int32Array, top_k: int
) -> Iterator[tuple[Place, int, float, float, float]]:
    """Place, token, logit, share and path's score of the arcs of one slot, best paths first."""
    places = list(level)
    token_ids, logits = _find_candidates(places, row, ranked, top_k)
    shares = logits - logits[:, :1]
    shares -= np.log(np.exp(shares).sum(axis=1, keepdims=True))
    scores = shares + np.array([[before] for before in level.values()])
    kept = _choose_arcs(token_ids, scores, top_k)
    sources = [places[number // token_ids.shape[1]] for number in kept]
    columns = [array.ravel()[kept].tolist() for array in (token_ids, logits, shares, scores)]
    return zip(sources, *columns, strict=True)


def _find_candidates(
    places: Sequence[Place], row: Float32Array, ranked: Int32Array, top_k: int
) -> tuple[Int32Array, Float64Array]:
    """The best tokens that each place allows.

    Args:
        places: S places, all with a token that may follow.
        row: (V,) logits of a head.
        ranked: (M,) its best tokens, best first.
        top_k: k.

    Returns:
        token_ids (S, k) int32 and logits (S, k) float64, best first; -inf behind the tokens that
        are allowed, of which there is at least one.
    """
    token_ids = np.zeros((len(places), top_k), np.int32)
    logits = np.full(token_ids.shape, -np.inf)
    for number, place in enumerate(places):
        best: Any = ranked[place.mask[ranked]][:top_k]
        if len(best) < top_k and len(best) < place.count:
            best = _best_of(place, row, top_k)
        scores: Any = row[best]
        if len(best) == 0 or scores[0] == -np.inf:  # the head masks all that may follow
            best, scores = place.token_ids[:1], 0.0
        token_ids[number, : len(best)], logits[number, : len(best)] = best, scores
    return token_ids, logits


def _best_of(place: Place, row: Float32Array, top_k: int) -> Any:
    """The best tokens that a place allows, best first, among all of the vocabulary."""
    ids: Any = place.token_ids
    if len(ids) > _FEW:
        masked = np.where(place.mask, row, np.float32(-np.inf))[None]
        ids = select_top_k(masked, top_k, log_softmax=False, where="intersect").token_ids[0, 0]
        return ids[place.mask[ids]]
    return ids[np.lexsort((ids, -row[ids]))[:top_k]]


def _choose_arcs(token_ids: Int32Array, scores: Float64Array, top_k: int) -> list[int]:
    """Places of the arcs to keep in (S, k) arrays, by falling score."""
    width = scores.shape[1]
    order = np.argsort(-scores, axis=None, kind="stable")[: np.count_nonzero(scores > -np.inf)]
    most = _MOST_ARCS * top_k
    tokens = token_ids.ravel()[order[:most]].tolist()
    seen: set[int] = set()
    kept = []
    for place, token in zip(order.tolist(), tokens, strict=False):
        if token in seen or len(seen) < top_k or place % width == 0:
            kept.append(place)
            seen.add(token)
    return kept + [place for place in order[most:].tolist() if place % width == 0]
