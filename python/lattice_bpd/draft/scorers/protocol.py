"""What a search asks of an LM, whatever the LM is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


class TransitionScorer(Protocol):
    """Scores tokens behind histories, R histories (rows) at a time.

    A search calls `start` once for each step, then for each slot `score` and `advance`. What a
    history state is, the scorer alone knows: token ids, LM states, a KV cache. Only the state that
    was returned last is used again, so `advance` may change the one it is given.

    A scorer may have an attribute `vocab_size` (V, int or None): then another vocabulary than the
    target's is refused.
    """

    def start(self, contexts: Sequence[Sequence[int]]) -> Any:
        """The history state behind B contexts, a row for each.

        Args:
            contexts: B sequences of token ids, prompt and all; do not change them.
        """
        ...

    def score(self, state: Any, candidates: Int32Array) -> Any:
        """ln P of k candidates behind each of the R histories.

        Args:
            state: history state of R rows.
            candidates: (R, k) int32 token ids.

        Returns:
            (R, k) floats, an array that numpy can read; -inf for what is impossible. They need not
            be normalised.
        """
        ...

    def advance(self, state: Any, rows: Int64Array, token_ids: Int32Array) -> Any:
        """The state of R' histories, each one of the old ones and a token more.

        Args:
            state: history state of R rows.
            rows: (R',) int64, 0..R-1: the history that each new one goes on from. A row may come
                several times, or not at all.
            token_ids: (R',) int32, the token behind it.
        """
        ...


def vocab_size_of(scorer: TransitionScorer) -> int | None:
    """V of a scorer that tells; else None."""
    size = getattr(scorer, "vocab_size", None)
    return None if size is None else int(size)
