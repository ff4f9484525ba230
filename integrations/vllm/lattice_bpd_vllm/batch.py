"""A step of an engine's target, and the requests of its batch to draft for; for any engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy.typing as npt
from torch import Tensor

if TYPE_CHECKING:
    from lattice_bpd_vllm.block_lattices import CacheLayout
    from lattice_bpd_vllm.predictions import StepPredictions


class EngineStep(NamedTuple):
    """What an engine knows after a step of its target; arrays may have rows for more requests.

    Attributes:
        kept: tokens that each request of the batch kept in this step; empty while its prompt is
            not complete.
        token_ids: (requests, positions) ints, the texts.
        num_tokens: (requests,) lengths of the texts, this step's tokens included.
        num_prompt_tokens: (requests,) lengths of their prompts.
        max_tokens: output limit of each request; None: no limit; 0: the request is not drafted.
        max_model_len: tokens of the longest text.
        max_draft_tokens: draft tokens that the engine verifies at most for a request.
        hidden: (rows, D) the hidden states that tokens were taken from, see `rows_of_last_tokens`.
        verified: draft tokens verified for each request; None: nothing was verified.
        names: of the requests.
        active: names of all requests that have not ended.
        features: (N, n*D) hidden states of the layers that the drafter reads, of all N tokens of
            the step; None: it reads none.
        layout: where these N tokens are in the engine's KV cache; None without features.
        tenants: whom each request is of; None: all of one.
        predictions: the target's most probable next tokens after the tokens of this step; None:
            the engine does not show logits, or its drafter does not use them.
    """

    kept: Sequence[Sequence[int]]
    token_ids: npt.NDArray[Any]
    num_tokens: npt.NDArray[Any]
    num_prompt_tokens: npt.NDArray[Any]
    max_tokens: Sequence[int | None]
    max_model_len: int
    max_draft_tokens: int
    hidden: Tensor
    verified: Sequence[int] | None
    names: Sequence[str]
    active: Collection[str]
    features: Tensor | None = None
    layout: CacheLayout | None = None
    tenants: Sequence[str] | None = None
    predictions: StepPredictions | None = None


class DraftBatch(NamedTuple):
    """Requests to draft for, in the order of the engine's batch.

    Attributes:
        requests: (B,) their indices in the engine's batch.
        exact_tokens: (B,) the last token of each request.
        max_lengths: (B,) the longest drafts, 1 or more.
        lengths: (B,) tokens of their texts, the exact token included.
    """

    requests: list[int]
    exact_tokens: list[int]
    max_lengths: list[int]
    lengths: list[int]


def select_requests(step: EngineStep, num_slots: int) -> DraftBatch:
    """The requests that kept a token and have tokens left to draft.

    A step keeps the accepted draft tokens and one more, so a draft is at least one token shorter
    than what is left of `max_tokens` and of the model's positions.

    Args:
        step: of the engine.
        num_slots: tokens that the drafter drafts at most.
    """
    most = min(num_slots, step.max_draft_tokens)
    longest = step.max_model_len
    batch = DraftBatch([], [], [], [])
    for request, (tokens, limit) in enumerate(zip(step.kept, step.max_tokens, strict=True)):
        if not tokens:
            continue
        length, end = step.num_tokens.item(request), longest
        if limit is not None:
            end = min(step.num_prompt_tokens.item(request) + limit, longest)
        left = min(end - length - 1, most)
        if left > 0:
            batch.requests.append(request)
            batch.exact_tokens.append(tokens[-1])
            batch.max_lengths.append(left)
            batch.lengths.append(length)
    return batch
