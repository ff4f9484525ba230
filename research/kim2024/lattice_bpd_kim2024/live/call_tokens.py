"""Splits an output by target calls: accepted draft tokens and the target's own token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CallTokens:
    """The tokens decoded by one call of the target.

    Attributes:
        accepted: draft tokens that it accepted.
        own: the target's own next token; empty if the output ended within the draft.
    """

    accepted: list[int]
    own: list[int]


def split_by_call(output: Sequence[int], accept_lengths: Sequence[int]) -> list[CallTokens]:
    """The tokens of each call, in order; the first call reads the prompt and has no draft.

    Args:
        output: (m,) decoded token ids.
        accept_lengths: draft tokens accepted by each verifying call, `DecodeStats.accept_lengths`.

    Raises:
        ValueError: the numbers do not add up to the length of the output.
    """
    calls, start = [], 0
    for accepted in [0, *accept_lengths]:
        middle = start + accepted
        calls.append(CallTokens(list(output[start:middle]), list(output[middle : middle + 1])))
        start = middle + 1
    if len(output) not in (start, start - 1) or any(not call.own for call in calls[:-1]):
        raise ValueError(
            f"split_by_call: {len(output)} tokens in calls that accepted {list(accept_lengths)}; "
            "expected output and accept_lengths of one decoding run"
        )
    return calls
