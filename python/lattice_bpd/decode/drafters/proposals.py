"""From what drafters propose to the trees that are verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

import numpy as np

from lattice_bpd.decode.constraint.trees import constrain_tree
from lattice_bpd.decode.drafters.basic import Drafter, NoDrafter
from lattice_bpd.decode.drafters.failures import failure_kind, note_failure
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.draft_tree import DraftTree
from lattice_bpd.draft.drafts import Drafts
from lattice_bpd.draft.sampled_nodes import DrawnNodes
from lattice_bpd.draft.sampled_tree import DrawnTree
from lattice_bpd.verify.prefix_tree import PrefixTree


def propose_trees(drafters: Sequence[Drafter], states: Sequence[DecodeState]) -> list[PrefixTree]:
    """Ask the drafters, all sequences of a shared one in one call.

    Args:
        drafters: one for each state, maybe the same.
        states: sequences that go on.

    Returns:
        A tree below each exact token; node 0 alone where nothing is drafted, or where drafting
        failed (see `draft_failures`).

    Raises:
        TypeError: a drafter returned something else.
        ValueError: a drafter proposed token ids outside the vocabulary.
    """
    for state in states:
        state.update_num_slots()
    asked = [number for number, state in enumerate(states) if state.room > 0]
    trees: list[PrefixTree | None] = [None] * len(states)
    first = drafters[asked[0]] if asked else None
    together = len(asked) > 1 and all(drafters[number] is first for number in asked)
    for group in [asked] if together else [[number] for number in asked]:
        found = draft_trees(drafters[group[0]], [states[number] for number in group])
        for number, tree in zip(group, found, strict=True):
            trees[number] = tree
    proposed = []
    for tree, state, drafter in zip(trees, states, drafters, strict=True):
        if tree is None:
            tree = _no_drafts(state)
        if state.constrained is not None:
            tree = _under_constraint(tree, state, drafter)
        if state.model.target.is_recurrent and tree.max_depth + 1 < len(tree):
            tree = tree.best_chain()
            state.stats.flattened_trees += 1
        state.stats.verified_tokens += len(tree) - 1
        proposed.append(tree)
    return proposed


def draft_trees(drafter: Drafter, states: Sequence[DecodeState]) -> list[PrefixTree | None]:
    """What a drafter proposes below the exact token of each state; None: nothing.

    A draft that fails is counted and is no draft; see `draft_failures.failure_kind`.

    Raises:
        TypeError: it returned something else.
        ValueError: it proposed token ids outside the vocabulary.
    """
    nothing: list[PrefixTree | None] = [None] * len(states)
    if has_prefix_trees(type(drafter)):
        quick = drafter.propose_prefix_trees  # type: ignore[attr-defined]
        found: list[PrefixTree | None] | None = _or_note_failure(drafter, states, quick, nothing)
        if found is not None:
            return found
    rows = ask_drafter(drafter, states)
    return [
        None if proposal is None else _to_tree(proposal, row, state, drafter)
        for (proposal, row), state in zip(rows, states, strict=True)
    ]


@lru_cache(maxsize=64)  # classes made on the fly are not kept for ever
def has_prefix_trees(kind: type) -> bool:
    """Whether a class of drafters proposes PrefixTrees.

    A subclass that proposes in another way, and knows nothing of them, does not.
    """
    for base in kind.__mro__:
        if "propose_prefix_trees" in vars(base):
            return True
        if "propose" in vars(base) or "propose_batch" in vars(base):
            return False
    return False


def ask_drafter(
    drafter: Drafter, states: Sequence[DecodeState]
) -> list[tuple[Drafts | DraftTree | DrawnTree | DrawnNodes | None, int]]:
    """What a drafter proposes for each state, and the row of the proposal that is the state's.

    A draft that fails is counted and is no draft; see `draft_failures.failure_kind`.
    """
    together = getattr(drafter, "propose_batch", None)
    if len(states) > 1 and together is None:
        return [ask_drafter(drafter, [state])[0] for state in states]
    if len(states) == 1:
        found = _or_note_failure(drafter, states, lambda states: drafter.propose(states[0]), None)
    else:
        found = _or_note_failure(drafter, states, together, None)  # type: ignore[arg-type]
    if len(states) > 1 and isinstance(found, list):
        if len(found) != len(states):
            raise ValueError(
                f"decode: {type(drafter).__name__} proposed a list of {len(found)} for "
                f"{len(states)} sequences; expected a proposal or None for each"
            )
        return [(proposal, 0) for proposal in found]
    return [(found, row) for row in range(len(states))]


def _or_note_failure(
    drafter: Drafter,
    states: Sequence[DecodeState],
    propose: Callable[[Any], Any],
    nothing: Any,
) -> Any:
    """What is proposed; `nothing`, and a note, where that fails in a way that decoding survives."""
    try:
        return propose(states)
    except Exception as error:
        kind = failure_kind(error)
        if kind is None:
            raise
        note_failure(drafter, states, kind, error)
        return nothing


def _to_tree(proposal: Any, row: int, state: DecodeState, drafter: Drafter) -> PrefixTree:
    if not isinstance(proposal, (Drafts, DraftTree, DrawnTree, DrawnNodes, PrefixTree)):
        raise TypeError(
            f"decode: the drafter proposed a {type(proposal).__name__}; expected Drafts, a "
            "DraftTree, a DrawnTree, DrawnNodes, a PrefixTree or None"
        )
    try:
        tree = _tree_of(proposal, row, state)
    except (ValueError, IndexError, TypeError) as error:
        note_failure(drafter, [state], "shape", error)
        return _no_drafts(state)
    low, wrong = tree.token_range
    if wrong >= state.model.vocab_size or low < 0:
        raise ValueError(
            f"decode: the drafter proposed token id {wrong}; expected 0.."
            f"{state.model.vocab_size - 1}; draft with the target's own token ids"
        )
    return tree


def _no_drafts(state: DecodeState) -> PrefixTree:
    """The exact token alone."""
    return PrefixTree(state.tokens[-1:], [-1])


def _tree_of(
    proposal: Drafts | DraftTree | DrawnTree | DrawnNodes | PrefixTree,
    row: int,
    state: DecodeState,
) -> PrefixTree:
    exact, room = state.tokens[-1], state.room
    if isinstance(proposal, PrefixTree):
        if len(proposal) == 0 or proposal.token_ids[0] != exact:
            raise ValueError(
                f"node 0 of a PrefixTree holds {proposal.token_ids[:1]}; expected the exact token "
                f"{exact}, the last of state.tokens"
            )
        return proposal if proposal.max_depth <= room else proposal.cut(len(proposal), room)
    if isinstance(proposal, Drafts):
        drafts = to_numpy(proposal.token_ids)[row, : int(proposal.counts[row]), :room]
        tree = PrefixTree.from_drafts(exact, drafts)
        state.stats.add_repeats(*tree.count_repeats())
        return tree
    if isinstance(proposal, (DraftTree, DrawnTree)):
        count = int(proposal.counts[row])
        token_ids = to_numpy(proposal.token_ids)[row, :count]
        parents = to_numpy(proposal.parents)[row, :count]
        known = proposal.log_probs is not None  # else of somebody who has none to give
        log_probs = to_numpy(proposal.log_probs)[row, :count] if known else None
        tree = PrefixTree.from_nodes(exact, token_ids, parents, room, log_probs)
        if isinstance(proposal, DrawnTree) and proposal.is_drawn:
            tree.drawn_from = _drawn_from(proposal, row, room)
        return tree
    token_ids, parents = proposal.token_ids, proposal.parents
    depths = PrefixTree.from_nodes(exact, token_ids, parents, len(token_ids)).depths
    tree = PrefixTree.from_nodes(exact, token_ids, parents, room)
    drawn = [
        drawn_from if depth < room else None
        for depth, drawn_from in zip(depths, proposal.drawn_from, strict=True)
        if depth <= room
    ]
    tree.drawn_from = drawn.__getitem__
    return tree


def _drawn_from(
    proposal: DrawnTree, row: int, room: int
) -> Callable[[int], tuple[Any, Any] | None]:
    """What the children of a node were drawn from, by its number once deeper ones are cut off."""
    depths = proposal.depths[row, : int(proposal.counts[row])]
    nodes = [-1, *np.flatnonzero(depths < room).tolist()]
    return lambda node: proposal.drawn_from(row, nodes[node])


def _under_constraint(tree: PrefixTree, state: DecodeState, drafter: Drafter) -> PrefixTree:
    """What the state's constraint allows of a tree and foresees; NoDrafter drafts nothing still."""
    if state.constrained is None or isinstance(drafter, NoDrafter):
        return tree
    with state.stats.stage("constraint"):
        return constrain_tree(tree, state.constrained.place, state.room)


def rows_of(proposal: Drafts, row: int, most: int) -> list[list[int]]:
    """The drafts of a row, without padding, each cut to `most` tokens."""
    token_ids = to_numpy(proposal.token_ids)
    drafts: list[list[int]] = token_ids[row, : int(proposal.counts[row]), :most].tolist()
    return [_without_padding(draft) for draft in drafts]


def _without_padding(draft: list[int]) -> list[int]:
    pad = Drafts.PAD_TOKEN
    return draft[: draft.index(pad)] if draft and draft[-1] == pad else draft


def row_of(proposal: Drafts | DraftTree, row: int) -> Drafts | DraftTree:
    """A proposal of batch size 1: one row of another."""
    parts = {one.name: getattr(proposal, one.name) for one in fields(proposal)}
    return type(proposal)(**{name: part[row : row + 1] for name, part in parts.items()})


def to_numpy(array: Any) -> Any:
    """An array of a proposal, which is numpy's or torch's, as numpy's."""
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()
