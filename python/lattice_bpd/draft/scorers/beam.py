"""Beam search of a lattice with any transition scorer.

    score(w) = sum_j z_j[w_j] + alpha * sum_j ln P(w_j | context, w_1 .. w_{j-1})

With a beam of 1 this is the greedy rescoring of Kim et al. 2024, algorithm 2: the maximum of
z_j[S_j] + alpha * r[S_j] for each slot. (The paper adds the rescorer's logits r; log probabilities
differ from them by a constant for each history, which matters only between drafts.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_bpd.draft.drafts import Drafts
from lattice_bpd.draft.scorers.protocol import Int32Array, TransitionScorer
from lattice_bpd.lattice.logits import Candidates

_IMPOSSIBLE = -1e6  # replaces -inf, so that 0 and negative weights give numbers

Float64Array = npt.NDArray[np.float64]


class ScorerError(ValueError):
    """A scorer returned unusable scores.

    Attributes:
        kind: "shape" or "nan".
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _Beam(NamedTuple):
    """The w best prefixes of each of B lattices, best first.

    Attributes:
        tokens: (B, w, j) int32.
        scores: (B, w) float64.
        ranks: (B, w) int64, the rank of each prefix among those of its lattice by token ids.
        exists: (B, w) bool; False where a lattice has fewer prefixes.
    """

    tokens: Int32Array
    scores: Float64Array
    ranks: npt.NDArray[np.int64]
    exists: npt.NDArray[np.bool_]


def search_drafts(
    candidates: Candidates,
    contexts: Sequence[Sequence[int]],
    scorer: TransitionScorer,
    *,
    num_drafts: int = 1,
    alpha: float = 0.5,
    beam: int | None = None,
) -> Drafts:
    """Finds drafts by beam search. Exact if the beam holds all prefixes.

    Args:
        candidates: the k best tokens of each slot of B lattices; see `select_top_k`. Tokens with
            score -inf are left out; a slot without other tokens ends its lattice.
        contexts: B sequences of token ids, all tokens before each lattice.
        scorer: scores transitions.
        num_drafts: p, 1 or more.
        alpha: weight of the scorer.
        beam: prefixes kept after each slot, at least p; None: p.

    Returns:
        Drafts with (B, p, H) int32, best first; ties go to the smaller token id, from left to
        right. Drafts of a lattice that ended before slot H end in -1.

    Raises:
        ScorerError: scores of another shape, NaN or +inf.
        ValueError: options out of range.
    """
    width = num_drafts if beam is None else beam
    if num_drafts < 1 or width < num_drafts:
        raise ValueError(
            f"search_drafts: num_drafts is {num_drafts}, beam {beam}; expected 1 or more drafts "
            "and a beam of at least as many"
        )
    batch, slots = candidates.token_ids.shape[:2]
    is_open = np.logical_and.accumulate(~np.isneginf(candidates.scores).all(axis=2), axis=1)
    open_slots = int(is_open.sum(axis=1).max(initial=0))
    prefixes = _Beam(
        np.zeros((batch, 1, 0), np.int32),
        np.zeros((batch, 1)),
        np.zeros((batch, 1), np.int64),
        is_open[:, :1].copy(),
    )
    if open_slots == 0:
        return _to_drafts(prefixes, num_drafts, slots)
    state = scorer.start(contexts)
    for slot in range(open_slots):
        token_ids, scores = candidates.token_ids[:, slot], candidates.scores[:, slot]
        bonus = alpha * _score_candidates(scorer, state, token_ids, prefixes.scores.shape[1])
        old_width = bonus.shape[1]
        options = _keep_ended(is_open[:, slot], token_ids, scores, bonus)
        parents, prefixes = _extend(prefixes, *options, width)
        if slot + 1 < open_slots:  # nothing is scored after the last slot
            rows = parents + np.arange(batch)[:, None] * old_width
            last = np.maximum(prefixes.tokens[:, :, -1], 0)  # a real token for lattices that ended
            state = scorer.advance(state, rows.reshape(-1), last.reshape(-1))
    return _to_drafts(prefixes, num_drafts, slots)


def _score_candidates(
    scorer: TransitionScorer, state: Any, token_ids: Int32Array, width: int
) -> Float64Array:
    """(B, w, k) log probabilities of each lattice's candidates after each of its prefixes."""
    batch, top_k = token_ids.shape
    wanted = np.ascontiguousarray(np.repeat(token_ids, width, axis=0))
    log_probs = np.asarray(scorer.score(state, wanted), dtype=np.float64)
    name = type(scorer).__name__
    if log_probs.shape != wanted.shape:
        raise ScorerError(
            "shape", f"{name}.score gave shape {log_probs.shape}; expected {wanted.shape}"
        )
    if np.isnan(log_probs).any() or np.isposinf(log_probs).any():
        raise ScorerError("nan", f"{name}.score gave NaN or +inf; expected log probabilities")
    return np.where(np.isneginf(log_probs), _IMPOSSIBLE, log_probs).reshape(batch, width, top_k)


def _keep_ended(
    is_open: npt.NDArray[np.bool_],
    token_ids: Int32Array,
    scores: npt.NDArray[np.float32],
    bonus: Float64Array,
) -> tuple[Int32Array, npt.NDArray[np.float32], Float64Array]:
    """Gives lattices that ended before this slot one padding candidate with score 0."""
    if is_open.all():
        return token_ids, scores, bonus
    token_ids = np.where(is_open[:, None], token_ids, np.int32(Drafts.PAD_TOKEN))
    scores = scores.copy()
    scores[~is_open] = -np.inf
    scores[~is_open, 0] = 0.0
    return token_ids, scores, np.where(is_open[:, None, None], bonus, 0.0)


def _extend(
    beam: _Beam, token_ids: Int32Array, scores: npt.NDArray[np.float32], bonus: Float64Array,
    width: int,
) -> tuple[npt.NDArray[np.int64], _Beam]:  # fmt: skip
    """The best prefixes of one more token, and (B, w') the old prefix that each one extends."""
    batch, old_width = beam.scores.shape
    top_k = token_ids.shape[1]
    usable = ~np.isneginf(scores)  # (B, k)
    exists = (beam.exists[:, :, None] & usable[:, None]).reshape(batch, -1)
    total = (beam.scores[:, :, None] + scores[:, None] + bonus).reshape(batch, -1)
    tokens = np.tile(token_ids, (1, old_width))
    ranks = np.repeat(beam.ranks, top_k, axis=1)
    order = np.lexsort((tokens, ranks, -total, ~exists))  # the last key counts most
    count = min(width, int(exists.sum(axis=1).max()))
    best = order[:, :count]

    def pick(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.take_along_axis(values, best, axis=1)

    parents = best // top_k
    by_tokens = np.lexsort((pick(tokens), pick(ranks)))
    new_ranks = np.empty_like(by_tokens)
    np.put_along_axis(new_ranks, by_tokens, np.arange(count)[None], axis=1)
    before = np.take_along_axis(beam.tokens, parents[:, :, None], axis=1)
    extended = np.concatenate([before, pick(tokens)[:, :, None]], axis=2)
    return parents, _Beam(extended, pick(total), new_ranks, pick(exists))


def _to_drafts(beam: _Beam, num_drafts: int, slots: int) -> Drafts:
    batch, width, open_slots = beam.tokens.shape
    token_ids = np.full((batch, num_drafts, slots), Drafts.PAD_TOKEN, np.int32)
    scores = np.full((batch, num_drafts), -np.inf, np.float32)
    kept = min(width, num_drafts)
    exists = beam.exists[:, :kept]
    token_ids[:, :kept, :open_slots][exists] = beam.tokens[:, :kept][exists]
    scores[:, :kept][exists] = beam.scores[:, :kept][exists]
    return Drafts(token_ids, scores, exists.sum(axis=1).astype(np.int32))
