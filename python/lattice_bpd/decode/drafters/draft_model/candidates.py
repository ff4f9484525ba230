"""The most likely tokens behind texts, and draws from among them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from lattice_bpd.lattice.logits import select_top_k


class Best(NamedTuple):
    """The k most likely tokens behind each of R texts.

    Attributes:
        token_ids: (R, k) int32, best first, equal ones by rising id.
        scores: (R, k) float32, their logits or log probabilities.
        failed: (R,) bool, whether the logits are no numbers; the tokens are of no use then.
    """

    token_ids: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]
    failed: npt.NDArray[np.bool_]


def find_best(logits: Tensor, top_k: int, temperature: float | None = None) -> Best:
    """The top_k best of (R, V) logits; a row with NaN or +inf, or without a number, has failed.

    Scores are logits, or with a temperature the log probabilities of softmax(logits / temperature)
    over the whole vocabulary.
    """
    failed = ~logits.amax(dim=-1).isfinite()  # NaN wins amax
    rows: Any = failed.cpu().numpy()
    if rows.any():
        logits = logits.masked_fill(failed[:, None], 0.0)
    share = temperature is not None
    if temperature is not None and temperature != 1.0:
        logits = logits.float() / temperature
    found = select_top_k(logits, top_k, log_softmax=share, where="DraftModelDrafter")
    return Best(found.token_ids[0], found.scores[0], rows)


def probabilities(
    scores: npt.NDArray[np.float32], temperature: float = 1.0
) -> npt.NDArray[np.float64]:
    """Softmax of (.., k) scores / temperature, in float64."""
    scaled = scores.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    found: npt.NDArray[np.float64] = weights / weights.sum(axis=-1, keepdims=True)
    return found


def draw(
    shares: npt.NDArray[np.float64], count: int, generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Up to `count` different places of (k,) probabilities, drawn one after the other.

    Each is drawn in proportion to its probability from among those that are left: places in falling
    order of ln p + Gumbel noise (Kool et al. 2019). Places of probability 0 are never drawn.
    """
    with np.errstate(divide="ignore"):
        keys = np.log(shares) + generator.gumbel(size=len(shares))
    return np.argsort(-keys, kind="stable")[: min(count, int((shares > 0.0).sum()))]
