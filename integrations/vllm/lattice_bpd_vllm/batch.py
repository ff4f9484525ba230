"""The requests of a step that can be drafted for, with contexts and the longest drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy.typing as npt


class DraftBatch(NamedTuple):
    """Requests to draft for, in the order of the engine's batch.

    Attributes:
        requests: (B,) their indices in the engine's batch.
        contexts: (B,) lists of the last token ids, the exact token last.
        max_lengths: (B,) the longest drafts, 1 or more.
        lengths: (B,) tokens of their texts, the exact token included.
    """

    requests: list[int]
    contexts: list[list[int]]
    max_lengths: list[int]
    lengths: list[int]

    @property
    def exact_tokens(self) -> list[int]:
        """(B,) the last token of each request."""
        return [context[-1] for context in self.contexts]


class Texts(NamedTuple):
    """The texts of an engine's batch; arrays may have rows for more requests.

    Attributes:
        token_ids: (requests, positions) ints.
        num_tokens: (requests,) lengths of the texts, this step's tokens included.
        num_prompt_tokens: (requests,) lengths of their prompts.
        max_tokens: output limit of each request; None: no limit.
        max_model_len: tokens of the longest text.
    """

    token_ids: npt.NDArray[Any]
    num_tokens: npt.NDArray[Any]
    num_prompt_tokens: npt.NDArray[Any]
    max_tokens: Sequence[int | None]
    max_model_len: int


def select_requests(
    kept: Sequence[Sequence[int]], texts: Texts, most: int, context_length: int
) -> DraftBatch:
    """The requests that kept a token and have tokens left to draft.

    A step keeps the accepted draft tokens and one more, so a draft is at least one token shorter
    than what is left of `max_tokens` and of the model's positions.

    Args:
        kept: tokens that each request of the batch kept in this step; empty while its prompt is
            not complete.
        texts: of the batch.
        most: draft tokens that the engine verifies at most.
        context_length: tokens of a context.
    """
    count = len(kept)
    ends = texts.num_tokens[:count].tolist()
    prompts = texts.num_prompt_tokens[:count].tolist()
    requests, contexts, max_lengths, lengths = [], [], [], []
    for request, tokens in enumerate(kept):
        if not tokens:
            continue
        end, limit = ends[request], texts.max_tokens[request]
        longest = texts.max_model_len
        if limit is not None and prompts[request] + limit < longest:
            longest = prompts[request] + limit
        longest -= end + 1
        if longest < 1 or most < 1:
            continue
        requests.append(request)
        start = end - context_length if end > context_length else 0
        contexts.append(texts.token_ids[request, start:end].tolist())
        max_lengths.append(longest if longest < most else most)
        lengths.append(end)
    return DraftBatch(requests, contexts, max_lengths, lengths)
