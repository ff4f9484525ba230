"""Several scorers in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd.draft.scorers.ngram import as_scorer
from lattice_bpd.draft.scorers.protocol import (
    Int32Array,
    Int64Array,
    TransitionScorer,
    vocab_size_of,
)
from lattice_bpd.vocabulary import may_share_ids


class MixtureScorer(TransitionScorer):
    """The log-linear mixture: sum of weight * ln P over its scorers, not normalized.

    A token that is impossible for one scorer is impossible for the mixture. For the linear mixture
    of n-gram LMs, a weighted mean of probabilities, see `NGramLM.interpolate`.

    Args:
        scorers: pairs of a scorer (or an NGramLM) and its weight, any number.

    Raises:
        TypeError: something that is no scorer, or no pair.
        ValueError: no scorer, a weight that is not finite, or different vocabularies.
    """

    def __init__(self, scorers: Sequence[tuple[Any, float]]) -> None:
        if len(scorers) == 0:
            raise ValueError("MixtureScorer: no scorer; expected one or more (scorer, weight)")
        if any(not isinstance(pair, Sequence) or len(pair) != 2 for pair in scorers):
            raise TypeError("MixtureScorer: expected pairs (scorer, weight)")
        self.scorers = [as_scorer(scorer) for scorer, _ in scorers]
        self.weights = [float(weight) for _, weight in scorers]
        if not np.isfinite(self.weights).all():
            raise ValueError(f"MixtureScorer: weights are {self.weights}; expected finite numbers")
        sizes = [size for size in map(vocab_size_of, self.scorers) if size is not None]
        if sizes and not may_share_ids(min(sizes), max(sizes)):
            raise ValueError(
                f"MixtureScorer: the scorers have vocabularies of {sorted(sizes)}; expected one "
                "tokenizer; use scorers over the target's token ids"
            )
        self.vocab_size = max(sizes, default=None)

    def start(self, contexts: Sequence[Sequence[int]]) -> list[Any]:
        """See TransitionScorer; a state for each scorer."""
        return [scorer.start(contexts) for scorer in self.scorers]

    def score(self, state: list[Any], candidates: Int32Array) -> npt.NDArray[np.float64]:
        """See TransitionScorer; (R, k) float64."""
        total = np.zeros(candidates.shape)
        for scorer, weight, part in zip(self.scorers, self.weights, state, strict=True):
            if weight != 0.0:  # 0 * -inf is no number
                total = total + weight * np.asarray(scorer.score(part, candidates), np.float64)
        return total

    def advance(self, state: list[Any], rows: Int64Array, token_ids: Int32Array) -> list[Any]:
        """See TransitionScorer."""
        return [
            scorer.advance(part, rows, token_ids)
            for scorer, part in zip(self.scorers, state, strict=True)
        ]
