"""The interface of transition scorers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


class TransitionScorer(Protocol):
    """Scores tokens after histories, R histories (rows) at a time.

    A search calls `start` once for each step, then `score` and `advance` for each slot. A history
    state can be anything, such as token ids, LM states or a KV cache. Only the last returned state
    is used again, so `advance` may change its argument.

    A scorer may have an attribute `vocab_size` (V, int or None): then another vocabulary than the
    target's is refused.
    """

    def start(self, contexts: Sequence[Sequence[int]]) -> Any:
        """The history state after B contexts, one row for each.

        Args:
            contexts: B sequences of token ids, including the prompt; do not change them.
        """
        ...

    def score(self, state: Any, candidates: Int32Array) -> Any:
        """ln P of k candidates after each of the R histories.

        Args:
            state: history state of R rows.
            candidates: (R, k) int32 token ids.

        Returns:
            (R, k) floats, an array that numpy can read; -inf for impossible tokens. They need not
            be normalized.
        """
        ...

    def advance(self, state: Any, rows: Int64Array, token_ids: Int32Array) -> Any:
        """The state of R' histories, each an old one extended by a token.

        Args:
            state: history state of R rows.
            rows: (R',) int64, 0..R-1: the history that each new one extends. A row may occur
                several times, or not at all.
            token_ids: (R',) int32, the token appended to it.
        """
        ...


def vocab_size_of(scorer: TransitionScorer) -> int | None:
    """V of a scorer; None if unknown."""
    size = getattr(scorer, "vocab_size", None)
    return None if size is None else int(size)
