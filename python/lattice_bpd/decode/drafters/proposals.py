"""Failed drafts, and checks of the trees that drafters propose."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from lattice_bpd.decode.drafters.drafter import Drafter
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


def drop_failed(drafter: Drafter, states: Sequence[DecodeState], error: Exception) -> None:
    """Count a step whose draft failed; raise any error that would come in every step."""
    kind = failure_kind(error)
    if kind is None:
        raise error
    note_failure(drafter, states, kind, error)


def refuse_proposal(drafter: Drafter, states: Sequence[DecodeState], proposed: Any) -> Exception:
    """The error for a proposal that is not a list with a tree or None for each state."""
    name = f"decode: {type(drafter).__name__}.propose returned a"
    if not isinstance(proposed, (list, tuple)):
        return TypeError(
            f"{name} {type(proposed).__name__}; expected a list with a PrefixTree or None for each "
            "state"
        )
    return ValueError(
        f"{name} list of {len(proposed)} for {len(states)} sequences; expected a PrefixTree or "
        "None for each"
    )


def correct_tree(tree: PrefixTree, state: DecodeState, drafter: Drafter) -> PrefixTree | None:
    """The tree cut to max_draft_length; None, and counted, below another token than the exact one.

    Raises:
        TypeError: not a tree.
        ValueError: token ids outside the vocabulary.
    """
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
