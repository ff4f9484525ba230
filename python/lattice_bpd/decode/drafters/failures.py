"""Handling of drafts that fail: the step decodes one token and is counted."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.verify.memory import is_lack_of_memory


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
