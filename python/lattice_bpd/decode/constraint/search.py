"""The lattices of a batch under their constraints, each searched by what fits it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from lattice_bpd import Drafts, DraftTree, NGramLM, rescore_fst, rescore_lattice, rescore_tree
from lattice_bpd.decode.constraint.lattice import Intersection, intersect
from lattice_bpd.decode.constraint.rows import stack_drafts, stack_trees, tree_of_drafts
from lattice_bpd.lattice.logits import Candidates, select_top_k

if TYPE_CHECKING:
    from lattice_bpd.decode.state import DecodeState


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
    choosers = [state.constrained for state in states if state.constrained is not None]
    if not choosers:
        return select_top_k(logits, top_k, log_softmax=False, where=where), None
    rows = logits.detach().float().cpu().numpy()
    found = [
        intersect(chooser.place, chooser.merged, row, top_k, where)
        for chooser, row in zip(choosers, rows, strict=True)
    ]
    shape = (*rows.shape[:2], top_k)
    candidates = Candidates(np.empty(shape, np.int32), np.empty(shape, np.float32))
    for number, intersection in enumerate(found):
        intersection.fill_candidates(candidates.token_ids[number], candidates.scores[number])
    return candidates, found if any(one.depends for one in found) else None


def rescore_drafts(
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
            acceptor = intersection.acceptor()
            rows.append(rescore_fst(acceptor, lm, num_drafts, context, alpha))
        else:
            row = _row(candidates, number)
            rows.append(rescore_lattice(row, [context], lm, num_drafts=num_drafts, alpha=alpha))
    return stack_drafts(rows)


def rescore_nodes(
    candidates: Candidates,
    found: Sequence[Intersection],
    contexts: Sequence[Sequence[int]],
    lm: NGramLM | None,
    max_nodes: int,
    alpha: float,
    temperature: float,
) -> DraftTree:
    """The most probable prefixes of each lattice.

    Where slots depend on the path, those of its `max_nodes` best paths; see `tree_of_drafts`.

    Args:
        candidates: see `rescore_drafts`, as for all arguments that are not listed here.
        found: see there.
        contexts: see there.
        lm: see there.
        max_nodes: N.
        alpha: see there.
        temperature: divides all scores.
    """
    rows = []
    weight, scale = alpha / temperature, 1.0 / temperature
    for number, (intersection, context) in enumerate(zip(found, contexts, strict=True)):
        if intersection.depends:
            drafts = rescore_fst(intersection.acceptor(scale), lm, max_nodes, context, weight)
            rows.append(tree_of_drafts(drafts, max_nodes))
        else:
            row = _row(candidates, number, scale)
            rows.append(rescore_tree(row, [context], lm, max_nodes=max_nodes, alpha=weight))
    return stack_trees(rows)


def _row(candidates: Candidates, number: int, scale: float = 1.0) -> Candidates:
    here = slice(number, number + 1)
    return Candidates(candidates.token_ids[here], candidates.scores[here] * np.float32(scale))
