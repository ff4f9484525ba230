"""Candidates and drafts for a batch of lattices under their constraints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from lattice_bpd.decode.constraint.automaton_state import AutomatonState
from lattice_bpd.decode.constraint.lattice import Intersection, intersect
from lattice_bpd.draft.drafts import Drafts
from lattice_bpd.draft.rescore import rescore_lattice
from lattice_bpd.draft.rescore_fst import rescore_fst
from lattice_bpd.lattice.logits import Candidates, select_top_k
from lattice_bpd.lm.ngram import NGramLM

if TYPE_CHECKING:
    from lattice_bpd.decode.state.sequence import DecodeState


def find_candidates(
    states: Sequence[DecodeState], logits: Tensor, top_k: int, where: str
) -> tuple[Candidates, list[Intersection] | None]:
    """The k best tokens of each slot among those that the constraint allows on some path.

    Args:
        states: of the B sequences; all have the same constraint, or none has one.
        logits: (B, H, V) of the heads.
        top_k: k.
        where: the caller's name, for error messages.

    Returns:
        Candidates (B, H, k); and the intersections if a slot depends on the path, so that masking
        the candidates is not enough; else None.

    Raises:
        ValueError: top_k out of range, NaN or +inf.
    """
    if states[0].constrained is None:
        return select_top_k(logits, top_k, log_softmax=False, where=where), None
    merged = states[0].constrained.merged
    rows = logits.detach().float().cpu().numpy()
    intersections = [
        intersect(state, merged, row, top_k, where)
        for state, row in zip(automaton_states_of(states), rows, strict=True)
    ]
    shape = (*rows.shape[:2], top_k)
    candidates = Candidates(np.empty(shape, np.int32), np.empty(shape, np.float32))
    for number, intersection in enumerate(intersections):
        intersection.fill_candidates(candidates.token_ids[number], candidates.scores[number])
    return candidates, intersections if any(one.depends for one in intersections) else None


def automaton_states_of(states: Sequence[DecodeState]) -> list[AutomatonState]:
    """The automaton states of the sequences that have a constraint."""
    return [state.constrained.automaton_state for state in states if state.constrained is not None]


def rescore_intersections(
    candidates: Candidates,
    intersections: Sequence[Intersection],
    contexts: Sequence[Sequence[int]],
    lm: NGramLM | None,
    num_drafts: int,
    alpha: float,
) -> Drafts:
    """The p best paths of each lattice, by `rescore_fst` if slots depend on the path.

    Args:
        candidates: (B, H, k), for lattices whose slots do not depend on the path.
        intersections: of the B lattices.
        contexts: token ids before each lattice.
        lm: n-gram LM or None.
        num_drafts: p.
        alpha: weight of the LM.
    """
    rows = []
    for number, (intersection, context) in enumerate(zip(intersections, contexts, strict=True)):
        if intersection.depends:
            rows.append(rescore_fst(intersection.acceptor(), lm, num_drafts, context, alpha))
        else:
            index = slice(number, number + 1)
            row = Candidates(candidates.token_ids[index], candidates.scores[index])
            rows.append(rescore_lattice(row, [context], lm, num_drafts=num_drafts, alpha=alpha))
    token_ids = _stack([row.token_ids[0] for row in rows], Drafts.PAD_TOKEN)
    scores = _stack([row.scores[0] for row in rows], -np.inf)
    return Drafts(token_ids, scores, np.concatenate([row.counts for row in rows]))


def _stack(arrays: Sequence[Any], fill: float) -> Any:
    """Stack arrays of different shapes along a new axis, padded at the end."""
    shape = [max(sizes) for sizes in zip(*(array.shape for array in arrays), strict=True)]
    stacked: Any = np.full((len(arrays), *shape), fill, arrays[0].dtype)
    for number, array in enumerate(arrays):
        stacked[number][tuple(map(slice, array.shape))] = array
    return stacked
