"""How often draft tokens are kept, learned while decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

_BINS = 16
_WIDTH = 0.5  # nats of a bin
_PRIOR = 2.0  # nodes that the tree's own probability counts for
_FORGET = 0.99  # what counts keep from one step to the next
_BEFORE = 1.0  # tokens of a Rate that were right, and as many that were wrong, before any was seen


class Calibration:
    """Probability that a tree's node is kept, from the probability that the tree gives it.

    Heads and LM are too sure of themselves, or not sure enough, and that changes with the text.
    Nodes are counted in bins of half a nat; old ones are forgotten.
    """

    def __init__(self) -> None:
        self._kept = np.zeros(_BINS)
        self._seen = np.full(_BINS, _PRIOR)

    def expected(self, log_probs: npt.NDArray[np.float32]) -> FloatArray:
        """Tokens that the first 1, 2, .. nodes are expected to keep.

        Args:
            log_probs: (N,) falling natural logs, as in DraftTree.

        Returns:
            (N,) rising.
        """
        return np.cumsum(self.probabilities(log_probs))

    def probabilities(self, log_probs: npt.NDArray[np.float32]) -> FloatArray:
        """Probability that each node is kept: (N,) falling, from (N,) falling natural logs."""
        bins = _bins_of(log_probs)
        kept = np.exp(np.minimum(log_probs, 0.0), dtype=np.float64)
        kept *= _PRIOR
        kept += self._kept.take(bins)
        kept /= self._seen.take(bins)
        return np.minimum.accumulate(kept)

    def add(
        self, log_probs: npt.NDArray[np.float32], kept: Sequence[bool] | npt.NDArray[np.bool_]
    ) -> None:
        """One verified tree: (N,) log probabilities of its nodes, (N,) whether they were kept."""
        bins = _bins_of(log_probs)
        self._kept *= _FORGET
        self._kept += np.bincount(bins, kept, _BINS)
        self._seen *= _FORGET
        self._seen += np.bincount(bins, None, _BINS) + (1.0 - _FORGET) * _PRIOR


@dataclass
class Rate:
    """How often tokens of one kind of chain were right, those behind a wrong one not counted."""

    right: float = 0.0
    tried: float = 0.0

    @property
    def value(self) -> float:
        """(right + 1) / (tried + 2)."""
        return (self.right + _BEFORE) / (self.tried + 2.0 * _BEFORE)

    def add(self, right: int, tried: int) -> None:
        """So many tokens tried, and the right ones among them; old ones fade by 1 % each time."""
        self.right, self.tried = _FORGET * self.right + right, _FORGET * self.tried + tried


def kept_nodes(
    token_ids: Sequence[int], parents: Sequence[int], depths: Sequence[int], written: Sequence[int]
) -> list[bool]:
    """Which nodes of a tree agree with what was written behind its context.

    Args:
        token_ids: (N,) of the nodes, parents before children.
        parents: (N,) -1 for first tokens.
        depths: (N,) 0 for first tokens.
        written: the tokens that came behind.

    Returns:
        (N,) bool.
    """
    kept: list[bool] = []
    for token, parent, depth in zip(token_ids, parents, depths, strict=True):
        agrees = depth < len(written) and written[depth] == token
        kept.append(agrees and (parent < 0 or kept[parent]))
    return kept


def _bins_of(log_probs: npt.NDArray[np.float32]) -> Any:
    falling = np.minimum(log_probs, 0.0) * np.float32(-1.0 / _WIDTH)
    return np.minimum(falling, _BINS - 1).astype(np.intp)
