"""Candidates of the slots of a lattice under a constraint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_bpd.lattice.logits import select_top_k
from lattice_bpd_constraints.automaton_state import AutomatonState, MergedStates

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int32Array = npt.NDArray[np.int32]
_MAX_ARCS = 4  # arcs of a slot / k
_RANKED = 4  # preselected best tokens of a slot / k
_FEW = 256  # sorting up to this many allowed tokens is faster than masking the vocabulary


class _Arc(NamedTuple):
    """An arc of one slot.

    Attributes:
        source: state before the token.
        token_id: the token.
        logit: of the head.
        log_prob: logit, normalized over the candidates of `source`.
        next_state: state after the token; None after the last slot.
    """

    source: AutomatonState
    token_id: int
    logit: float
    log_prob: float
    next_state: AutomatonState | None


@dataclass
class Intersection:
    """A sequence's lattice under its constraint.

    Attributes:
        slots: arcs of each slot; fewer slots than the heads have if every path ends early.
        depends: whether the tokens that a slot allows depend on the path.
    """

    slots: list[list[_Arc]]
    depends: bool

    def fill_candidates(self, token_ids: Int32Array, scores: Float32Array) -> None:
        """Fill a sausage with the tokens that some path allows and the heads' logits.

        Args:
            token_ids: (H, k) to be filled; slots that no path reaches get token 0.
            scores: (H, k) to be filled, padded with -inf.
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
    state: AutomatonState, merged: MergedStates, logits: Float32Array, top_k: int, where: str
) -> Intersection:
    """Expand the constraint over the slots of a lattice.

    Each slot keeps the arcs of the best paths with top_k different tokens, at most 4 * top_k arcs,
    and the best arc of each of its states.

    Args:
        state: state after the exact token.
        merged: states computed earlier.
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
    num_ranked = min(_RANKED * top_k, vocab_size) if top_k <= vocab_size else top_k
    ranked = select_top_k(logits, num_ranked, log_softmax=False, where=where).token_ids[0]
    level: dict[AutomatonState, float] = {state: 0.0}  # scores of the best paths
    slots: list[list[_Arc]] = []
    depends = False
    for slot, row in enumerate(logits):
        open_states = {state: score for state, score in level.items() if state.count}
        depends = depends or len(level) > 1
        if not open_states:
            break
        last, level, arcs = slot + 1 == len(logits), {}, []
        for source, token, logit, log_prob, score in _find_arcs(
            open_states, row, ranked[slot], top_k
        ):
            next_state = None
            if not last:
                next_state = merged.advance(source, token, exact=slot == 0)
                if next_state is None:
                    continue
                level.setdefault(next_state, score)  # the first arc is on the best path
            arcs.append(_Arc(source, token, logit, log_prob, next_state))
        slots.append(arcs)
    return Intersection(slots, depends)


def _find_arcs(
    level: dict[AutomatonState, float], row: Float32Array, ranked: Int32Array, top_k: int
) -> Iterator[tuple[AutomatonState, int, float, float, float]]:
    """(state, token, logit, log prob, path score) of the arcs of one slot, best paths first."""
    states = list(level)
    token_ids, logits = _find_candidates(states, row, ranked, top_k)
    log_probs = logits - logits[:, :1]
    log_probs -= np.log(np.exp(log_probs).sum(axis=1, keepdims=True))
    scores = log_probs + np.array([[path_score] for path_score in level.values()])
    kept = _choose_arcs(token_ids, scores, top_k)
    sources = [states[index // token_ids.shape[1]] for index in kept]
    columns = [array.ravel()[kept].tolist() for array in (token_ids, logits, log_probs, scores)]
    return zip(sources, *columns, strict=True)


def _find_candidates(
    states: Sequence[AutomatonState], row: Float32Array, ranked: Int32Array, top_k: int
) -> tuple[Int32Array, Float64Array]:
    """The best tokens that each state allows.

    Args:
        states: S states, each with at least one allowed token.
        row: (V,) logits of a head.
        ranked: (M,) its best tokens, best first.
        top_k: k.

    Returns:
        token_ids (S, k) int32 and logits (S, k) float64, best first, padded with -inf.
    """
    token_ids = np.zeros((len(states), top_k), np.int32)
    logits = np.full(token_ids.shape, -np.inf)
    for number, state in enumerate(states):
        best: Any = ranked[state.mask[ranked]][:top_k]
        if len(best) < top_k and len(best) < state.count:
            best = _best_of(state, row, top_k)
        scores: Any = row[best]
        if len(best) == 0 or scores[0] == -np.inf:  # the head masks all allowed tokens
            best, scores = state.token_ids[:1], 0.0
        token_ids[number, : len(best)], logits[number, : len(best)] = best, scores
    return token_ids, logits


def _best_of(state: AutomatonState, row: Float32Array, top_k: int) -> Any:
    """The best allowed tokens of the whole vocabulary, best first."""
    ids: Any = state.token_ids
    if len(ids) > _FEW:
        masked = np.where(state.mask, row, np.float32(-np.inf))[None]
        ids = select_top_k(masked, top_k, log_softmax=False, where="intersect").token_ids[0, 0]
        return ids[state.mask[ids]]
    return ids[np.lexsort((ids, -row[ids]))[:top_k]]


def _choose_arcs(token_ids: Int32Array, scores: Float64Array, top_k: int) -> list[int]:
    """Flat indices of the arcs to keep in (S, k) arrays, by descending score."""
    width = scores.shape[1]
    order = np.argsort(-scores, axis=None, kind="stable")[: np.count_nonzero(scores > -np.inf)]
    max_arcs = _MAX_ARCS * top_k
    tokens = token_ids.ravel()[order[:max_arcs]].tolist()
    seen: set[int] = set()
    kept = []
    for index, token in zip(order.tolist(), tokens, strict=False):
        if token in seen or len(seen) < top_k or index % width == 0:
            kept.append(index)
            seen.add(token)
    return kept + [index for index in order[max_arcs:].tolist() if index % width == 0]
