"""From what drafters propose to the trees that are verified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lattice_bpd import Drafts, DraftTree
from lattice_bpd.decode.constraint.trees import constrain_tree
from lattice_bpd.decode.drafters import Drafter, NoDrafter, Proposal
from lattice_bpd.decode.state import DecodeState
from lattice_bpd.verify import PrefixTree


def propose_trees(drafters: Sequence[Drafter], states: Sequence[DecodeState]) -> list[PrefixTree]:
    """Ask the drafters, all sequences of a shared one in one call.

    Args:
        drafters: one for each state, maybe the same.
        states: sequences that go on.

    Returns:
        A tree below each exact token; node 0 alone where nothing is drafted.

    Raises:
        TypeError: a drafter returned something else.
        ValueError: a drafter proposed token ids outside the vocabulary.
    """
    trees = [PrefixTree([state.tokens[-1]], [-1], [0]) for state in states]
    for state in states:
        state.update_num_slots()
    asked = [number for number, state in enumerate(states) if state.num_slots > 0]
    together = getattr(drafters[asked[0]], "propose_batch", None) if asked else None
    if len(asked) > 1 and together and all(drafters[n] is drafters[asked[0]] for n in asked):
        proposal = together([states[number] for number in asked])
        rows = [(number, proposal, row) for row, number in enumerate(asked)]
    else:
        rows = [(number, drafters[number].propose(states[number]), 0) for number in asked]
    for number, proposal, row in rows:
        if proposal is not None:
            trees[number] = _to_tree(proposal, row, states[number])
    return [
        _under_constraint(tree, state, drafter)
        for tree, state, drafter in zip(trees, states, drafters, strict=True)
    ]


def _to_tree(proposal: Proposal, row: int, state: DecodeState) -> PrefixTree:
    exact = state.tokens[-1]
    if isinstance(proposal, DraftTree):
        count = int(proposal.counts[row])
        token_ids = proposal.token_ids[row, :count].tolist()
        parents = proposal.parents[row, :count].tolist()
        tree = PrefixTree.from_nodes(exact, token_ids, parents, state.num_slots)
    elif isinstance(proposal, Drafts):
        drafts = _rows_of(proposal, row, state.num_slots)
        tree = PrefixTree.from_drafts(exact, drafts)
        if drafts:
            state.stats.count_repeats(exact, [token for token in drafts[0] if token >= 0])
    else:
        raise TypeError(
            f"decode: the drafter proposed a {type(proposal).__name__}; expected Drafts, a "
            "DraftTree or None"
        )
    wrong = max(tree.token_ids)
    if wrong >= state.model.vocab_size or min(tree.token_ids) < 0:
        raise ValueError(
            f"decode: the drafter proposed token id {wrong}; expected 0.."
            f"{state.model.vocab_size - 1}; draft with the target's own token ids"
        )
    state.stats.verified_tokens += len(tree) - 1
    return tree


def _under_constraint(tree: PrefixTree, state: DecodeState, drafter: Drafter) -> PrefixTree:
    """What the state's constraint allows of a tree and foresees; NoDrafter drafts nothing still."""
    if state.constrained is None or isinstance(drafter, NoDrafter):
        return tree
    drafted = len(tree)
    with state.stats.stage("constraint"):
        tree = constrain_tree(tree, state.constrained.place, state.room)
    state.stats.verified_tokens += len(tree) - drafted
    return tree


def _rows_of(proposal: Drafts, row: int, num_slots: int) -> list[list[int]]:
    token_ids = to_numpy(proposal.token_ids)
    drafts: list[list[int]] = token_ids[row, : int(proposal.counts[row]), :num_slots].tolist()
    return drafts


def to_numpy(array: Any) -> Any:
    """An array of a proposal, which is numpy's or torch's, as numpy's."""
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()
