"""Temperature, top-k, top-p and min-p of the target's distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from lattice_bpd.arguments import check_int
from lattice_bpd.verify.greedy import NAN

_MOST_LIKELY = 1024  # tokens that top-p sorts first; nearly always enough


@dataclass(frozen=True)
class Warp:
    """How logits become the distribution to sample from; same order as in `transformers`.

    Attributes:
        temperature: divides the logits, above 0.
        top_k: keep the k most likely tokens, and ties with the last of them; None: all.
        top_p: keep the smallest set of most likely tokens with this total probability, (0, 1].
        min_p: keep tokens with at least this share of the highest probability, [0, 1).

    Raises:
        ValueError: a number out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 0.0 < self.temperature < math.inf:
            hint = (
                "; for temperature 0 use Exact(), which is greedy" if not self.temperature else ""
            )
            raise ValueError(
                f"sampling: temperature is {self.temperature}; expected a number above 0{hint}"
            )
        if self.top_k is not None:
            check_int("sampling: top_k", self.top_k, 1)
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"sampling: top_p is {self.top_p}; expected above 0, at most 1")
        if not 0.0 <= self.min_p < 1.0:
            raise ValueError(f"sampling: min_p is {self.min_p}; expected 0 or more, below 1")

    def apply(self, logits: Tensor) -> npt.NDArray[np.float32]:
        """Logits of the distribution to sample from.

        Args:
            logits: (V,) float.

        Returns:
            (V,) float32; -inf for tokens with probability 0.

        Raises:
            ValueError: NaN among the logits.
        """
        scores: Any = logits.float().cpu().numpy() / np.float32(self.temperature)
        if np.isnan(scores[scores.argmax()]):  # argmax treats NaN as the largest number
            raise ValueError(NAN)
        if self.top_k is not None and self.top_k < len(scores):
            least = np.partition(scores, -self.top_k)[-self.top_k]
            scores = np.where(scores < least, -np.inf, scores)
        if self.top_p < 1.0:
            scores = self._keep_top_p(scores)
        if self.min_p > 0.0:
            scores = np.where(scores < scores.max() + math.log(self.min_p), -np.inf, scores)
        warped: npt.NDArray[np.float32] = scores.astype(np.float32, copy=False)
        return warped

    def _keep_top_p(self, scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
        probabilities = _softmax(scores)
        size = len(scores)
        for count in (min(_MOST_LIKELY, size), size):
            order = np.argpartition(-probabilities, count - 1)[:count]
            order = order[np.lexsort((order, -probabilities[order]))]
            before = np.cumsum(probabilities[order]) - probabilities[order]
            if count == size or before[-1] >= self.top_p:
                kept = order[: max(int((before < self.top_p).sum()), 1)]
                out = np.full(size, -np.inf, scores.dtype)
                out[kept] = scores[kept]
                return out
        raise AssertionError


def _softmax(scores: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """(V,) float64 probabilities of scores, at least one of which is finite."""
    exponentials = np.exp(scores.astype(np.float64) - float(scores.max()))
    probabilities: npt.NDArray[np.float64] = exponentials / exponentials.sum()
    return probabilities
