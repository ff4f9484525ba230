"""An n-gram LM as a transition scorer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from lattice_bpd.draft.scorers.protocol import Int32Array, Int64Array, TransitionScorer
from lattice_bpd.lm.ngram import NGramLM, core_of
from lattice_bpd.token_ids import concatenate, to_token_ids

_Histories = list[Int32Array]


class NGramScorer(TransitionScorer):
    """ln P of an NGramLM with exact backoff; a history state is the last n-1 tokens of each row.

    For mixtures. With an n-gram LM alone, `rescore_lattice` is exact and much faster.

    Args:
        lm: the n-gram LM.
        bos: whether the contexts start with ``<s>``.
    """

    def __init__(self, lm: NGramLM, *, bos: bool = True) -> None:
        core_of("NGramScorer", lm)  # refuses what is no NGramLM
        self.lm, self.bos, self.vocab_size = lm, bos, lm.vocab_size
        self._reach = max(1, lm.order - 1)  # <s> before a full history changes nothing

    def start(self, contexts: Sequence[Sequence[int]]) -> _Histories:
        """See TransitionScorer.

        Raises:
            ValueError: negative token ids; those above the vocabulary are ``<unk>``.
        """
        where = "NGramScorer: context"
        return [to_token_ids(c[-self._reach :], where) for c in contexts]

    def score(self, state: _Histories, candidates: Int32Array) -> npt.NDArray[np.float64]:
        """See TransitionScorer; (R, k) float64.

        Raises:
            ValueError: negative token ids, or candidates of another number of rows.
        """
        wanted = np.ascontiguousarray(candidates, np.int32)
        return self.lm._core.score_candidates(*concatenate(state), wanted, self.bos)

    def advance(self, state: _Histories, rows: Int64Array, token_ids: Int32Array) -> _Histories:
        """See TransitionScorer."""
        reach = self._reach
        pairs = zip(rows.tolist(), token_ids, strict=True)
        return [np.append(state[row], token)[-reach:].astype(np.int32) for row, token in pairs]


def as_scorer(scorer: Any) -> TransitionScorer:
    """The scorer itself, or a scorer around an NGramLM.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(scorer, NGramLM):
        return NGramScorer(scorer)
    if isinstance(scorer, (str, os.PathLike)):
        raise TypeError(
            f"scorer is the path {os.fspath(scorer)!r}; expected an NGramLM (NGramLM.load reads "
            "one), or a TransitionScorer such as KenlmScorer(path)"
        )
    missing = [
        name for name in ("start", "score", "advance") if not callable(getattr(scorer, name, None))
    ]
    if missing:
        raise TypeError(
            f"scorer is a {type(scorer).__name__} without {', '.join(missing)}; expected an "
            "NGramLM or a TransitionScorer; for a causal LM of transformers use NeuralScorer(model)"
        )
    return cast(TransitionScorer, scorer)
