"""Candidates of a batch of lattices under their constraints, and trees that obey them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from lattice_bpd.decode.constraint.automaton_state import AutomatonState
from lattice_bpd.decode.constraint.lattice import intersect
from lattice_bpd.decode.constraint.trees import cut_tree
from lattice_bpd.lattice.logits import Candidates, select_top_k
from lattice_bpd.verify.prefix_tree import PrefixTree

if TYPE_CHECKING:
    from lattice_bpd.decode.state.sequence import DecodeState


def find_candidates(
    states: Sequence[DecodeState], logits: Tensor, top_k: int, where: str
) -> tuple[Candidates, bool]:
    """The k best tokens of each slot among those that the constraint allows on some path.

    Args:
        states: of the B sequences; all have the same constraint, or none has one.
        logits: (B, H, V) of the heads.
        top_k: k.
        where: the caller's name, for error messages.

    Returns:
        Candidates (B, H, k); and whether a slot depends on the path, so that masking the candidates
        is not enough: then cut what is drafted, see `cut_trees`.

    Raises:
        ValueError: top_k out of range, NaN or +inf.
    """
    if states[0].constrained is None:
        return select_top_k(logits, top_k, log_softmax=False, where=where), False
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
    return candidates, any(one.depends for one in intersections)


def automaton_states_of(states: Sequence[DecodeState]) -> list[AutomatonState]:
    """The automaton states of the sequences that have a constraint."""
    return [state.constrained.automaton_state for state in states if state.constrained is not None]


def cut_trees(
    trees: Sequence[PrefixTree], states: Sequence[DecodeState], max_nodes: int
) -> list[PrefixTree]:
    """The first nodes of each tree that its constraint allows; see `cut_tree`."""
    pairs = zip(trees, automaton_states_of(states), strict=True)
    return [cut_tree(tree, automaton, max_nodes) for tree, automaton in pairs]
