"""Lattices of a batch under their constraints: candidates, drafts and trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from lattice_bpd.decode.constraint.lattice import Intersection, intersect
from lattice_bpd.decode.constraint.place import Place
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
    """The k best tokens of each slot that the texts' constraints allow on some path.

    Args:
        states: of the B sequences, all with a constraint or none.
        logits: (B, H, V) of the heads.
        top_k: k.
        where: the caller's name, for error messages.

    Returns:
        Candidates (B, H, k); and the intersections where a slot of some lattice depends on the
        path, so that candidates alone do not tell what is allowed; else None.

    Raises:
        ValueError: top_k out of range, NaN or +inf.
    """
    if states[0].constrained is None:
        return select_top_k(logits, top_k, log_softmax=False, where=where), None
    merged = states[0].constrained.merged
    rows = logits.detach().float().cpu().numpy()
    found = [
        intersect(place, merged, row, top_k, where)
        for place, row in zip(places_of(states), rows, strict=True)
    ]
    shape = (*rows.shape[:2], top_k)
    candidates = Candidates(np.empty(shape, np.int32), np.empty(shape, np.float32))
    for number, intersection in enumerate(found):
        intersection.fill_candidates(candidates.token_ids[number], candidates.scores[number])
    return candidates, found if any(one.depends for one in found) else None


def places_of(states: Sequence[DecodeState]) -> list[Place]:
    """Where texts with a constraint stand."""
    return [state.constrained.place for state in states if state.constrained is not None]


def rescore_intersections(
    candidates: Candidates,
    found: Sequence[Intersection],
    contexts: Sequence[Sequence[int]],
    lm: NGramLM | None,
    num_drafts: int,
    alpha: float,
) -> Drafts:
    """The p best paths of each lattice, by `rescore_fst` where slots depend on the path.

    Args:
        candidates: (B, H, k), of the lattices whose slots do not.
        found: the B intersections.
        contexts: of each.
        lm: n-gram LM or None.
        num_drafts: p.
        alpha: weight of the LM.
    """
    rows = []
    for number, (intersection, context) in enumerate(zip(found, contexts, strict=True)):
        if intersection.depends:
            rows.append(rescore_fst(intersection.acceptor(), lm, num_drafts, context, alpha))
        else:
            here = slice(number, number + 1)
            row = Candidates(candidates.token_ids[here], candidates.scores[here])
            rows.append(rescore_lattice(row, [context], lm, num_drafts=num_drafts, alpha=alpha))
    token_ids = _stack([row.token_ids[0] for row in rows], Drafts.PAD_TOKEN)
    scores = _stack([row.scores[0] for row in rows], -np.inf)
    return Drafts(token_ids, scores, np.concatenate([row.counts for row in rows]))


def _stack(arrays: Sequence[Any], fill: float) -> Any:
    """Arrays of one number of axes under each other, padded behind."""
    shape = [max(sizes) for sizes in zip(*(array.shape for array in arrays), strict=True)]
    found: Any = np.full((len(arrays), *shape), fill, arrays[0].dtype)
    for number, array in enumerate(arrays):
        found[number][tuple(map(slice, array.shape))] = array
    return found
