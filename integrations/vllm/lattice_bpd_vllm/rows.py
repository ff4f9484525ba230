"""Positions of requests within the rows of a verification call."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor


def first_rows(num_draft_tokens: Sequence[int]) -> list[int]:
    """The first row of each request, which has a row more than draft tokens."""
    return list(accumulate((count + 1 for count in num_draft_tokens[:-1]), initial=0))


def rows_of_last_tokens(
    requests: Sequence[int],
    num_kept: Sequence[int],
    num_draft_tokens: Sequence[int] | None,
) -> list[int]:
    """The rows of hidden states that gave the last kept token of requests.

    Verification lays out `num_draft_tokens[i] + 1` rows for request i, in the order of the batch:
    row j of a request predicts the token after its j-th draft token, and a request that keeps n
    tokens got the last of them from row n - 1.

    Args:
        requests: indices of requests in the batch, ascending.
        num_kept: tokens that each request of the batch kept in this step, 1 or more for those in
            `requests`.
        num_draft_tokens: draft tokens verified for each request of the batch; None: nothing was
            verified, one row for each request.

    Returns:
        A row for each entry of `requests`.

    Raises:
        ValueError: a request kept more tokens than it has rows, or none.
    """
    if num_draft_tokens is None:
        for request in requests:
            if num_kept[request] != 1:
                raise ValueError(
                    f"request {request} kept {num_kept[request]} tokens without drafts; expected 1"
                )
        return list(requests)
    starts = first_rows(num_draft_tokens)
    rows = []
    for request in requests:
        kept = num_kept[request]
        if not 1 <= kept <= num_draft_tokens[request] + 1:
            raise ValueError(
                f"request {request} kept {kept} tokens of {num_draft_tokens[request]} draft "
                f"tokens; expected 1..{num_draft_tokens[request] + 1}"
            )
        rows.append(starts[request] + kept - 1)
    return rows


def take_rows(hidden: Tensor, rows: Sequence[int]) -> Tensor:
    """Rows of hidden states, without a copy where they are one range.

    Args:
        hidden: (N, D) float.
        rows: (B,) ascending indices, one or more.

    Returns:
        (B, D) float.
    """
    first, end = rows[0], rows[-1] + 1
    if end - first == len(rows):
        return hidden[first:end]
    index = torch.from_numpy(np.array(rows))  # torch.tensor takes three times as long
    return hidden.index_select(0, index.to(hidden.device))
