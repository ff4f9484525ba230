"""Calls drafters and checks the trees that they propose."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from lattice_bpd.decode.constraint.trees import constrain_tree
from lattice_bpd.decode.drafters.drafter import Drafter, ModelSizes, NoDrafter
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.verify.memory import is_lack_of_memory
from lattice_bpd.verify.prefix_tree import PrefixTree


class DraftError(Exception):
    """Raised by a drafter that cannot draft in this step; decoding continues without a draft.

    Args:
        kind: one word for the statistics, such as "nan", "shape" or "memory".
        message: what was wrong.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class DraftWarning(UserWarning):
    """A draft failed and its step decodes one token; the message has drafter and reason."""


def failure_kind(error: Exception) -> str | None:
    """The kind of a failure that affects one step's draft only; None for any other error.

    "nan" (FloatingPointError), "memory" (MemoryError, a device out of memory), "shape"
    (IndexError), or the kind of a DraftError. A wrong type, vocabulary or option would fail in
    every step, so it is raised.
    """
    if isinstance(error, DraftError):
        return error.kind
    if isinstance(error, FloatingPointError):
        return "nan"
    if isinstance(error, IndexError):
        return "shape"
    if isinstance(error, MemoryError) or is_lack_of_memory(error):
        return "memory"
    return None


def note_failure(drafter: object, states: Sequence[DecodeState], kind: str, reason: object) -> None:
    """Count a step without a draft for each sequence, and warn about the first of a text."""
    first = not any(state.stats.draft_failures for state in states)
    for state in states:
        state.stats.count_draft_failure(kind)
    if first:
        warnings.warn(
            f"{type(drafter).__name__} drafted nothing ({kind}: {reason}); such a step decodes one "
            "token, and the output stays the target's own",
            DraftWarning,
            stacklevel=3,
        )


def propose_trees(drafters: Sequence[Drafter], states: Sequence[DecodeState]) -> list[PrefixTree]:
    """The drafts of a step; a drafter is called once with all of its sequences.

    Args:
        drafters: one for each state, possibly the same.
        states: active sequences.

    Returns:
        A tree below each exact token; only node 0 if nothing was drafted or drafting failed (see
        `failures`).

    Raises:
        TypeError: a drafter returned anything but a tree or None for each sequence.
        ValueError: a drafter proposed token ids outside the vocabulary.
    """
    groups: dict[int, list[int]] = {}  # sequences of each drafter
    for number, state in enumerate(states):
        state.update_limits()
        if state.max_draft_length > 0:
            groups.setdefault(id(drafters[number]), []).append(number)
    trees: list[PrefixTree | None] = [None] * len(states)
    for group in groups.values():
        proposed = propose_checked(drafters[group[0]], [states[number] for number in group])
        for number, tree in zip(group, proposed, strict=True):
            trees[number] = tree
    return [
        _finish(tree or empty_tree(state), state, drafter)
        for tree, state, drafter in zip(trees, states, drafters, strict=True)
    ]


def _finish(tree: PrefixTree, state: DecodeState, drafter: Drafter) -> PrefixTree:
    """The tree cut to the state's constraint, and to a chain where the target reads no trees."""
    if state.constrained is not None and not isinstance(drafter, NoDrafter):
        with state.stats.stage("constraint"):
            tree = constrain_tree(tree, state.constrained.automaton_state, state.max_draft_length)
    if state.is_chain and tree.max_depth + 1 < len(tree):
        tree = tree.best_chain()
        state.stats.flattened_trees += state.model.target.is_recurrent
    tree = state.model.target.limits.cut(tree)
    state.stats.verified_tokens += len(tree) - 1
    return tree


def empty_tree(state: DecodeState) -> PrefixTree:
    """The exact token alone."""
    return PrefixTree(state.tokens[-1:], [-1])


def propose_checked(drafter: Drafter, states: Sequence[DecodeState]) -> list[PrefixTree | None]:
    """The checked proposals of a drafter; None for a sequence without a draft.

    A draft that fails is counted and dropped; see `failures.failure_kind`.

    Raises:
        TypeError: it returned anything but a tree or None for each sequence.
        ValueError: it proposed token ids outside the vocabulary, or was tuned for another model.
    """
    sizes: ModelSizes | None = getattr(drafter, "model_sizes", None)
    if sizes is not None:
        sizes.check(states[0].model)
    try:
        proposed: Any = drafter.propose(states)
    except Exception as error:
        kind = failure_kind(error)
        if kind is None:
            raise
        note_failure(drafter, states, kind, error)
        return [None] * len(states)
    if not isinstance(proposed, (list, tuple)):
        raise TypeError(
            f"decode: {type(drafter).__name__}.propose returned a {type(proposed).__name__}; "
            "expected a list with a PrefixTree or None for each state"
        )
    if len(proposed) != len(states):
        raise ValueError(
            f"decode: {type(drafter).__name__}.propose returned a list of {len(proposed)} for "
            f"{len(states)} sequences; expected a PrefixTree or None for each"
        )
    return [
        None if tree is None else _check_tree(tree, state, drafter)
        for tree, state in zip(proposed, states, strict=True)
    ]


def _check_tree(tree: PrefixTree, state: DecodeState, drafter: Drafter) -> PrefixTree | None:
    if not isinstance(tree, PrefixTree):
        raise TypeError(
            f"decode: {type(drafter).__name__}.propose returned a list with a "
            f"{type(tree).__name__}; expected PrefixTree or None; PrefixTree.from_drafts and "
            "PrefixTree.from_nodes make one"
        )
    if tree.exact_token != state.tokens[-1]:
        note_failure(
            drafter, [state], "shape",
            f"node 0 of the tree is {tree.exact_token}; expected the exact token "
            f"{state.tokens[-1]}, the last of state.tokens",
        )  # fmt: skip
        return None
    lowest, highest = tree.token_range
    if highest >= state.model.vocab_size or lowest < 0:
        raise ValueError(
            f"decode: {type(drafter).__name__} proposed token id "
            f"{lowest if lowest < 0 else highest}; expected 0..{state.model.vocab_size - 1}; draft "
            "with the target's own token ids"
        )
    if tree.max_depth > state.max_draft_length:
        return tree.cut(len(tree), state.max_draft_length)
    return tree
