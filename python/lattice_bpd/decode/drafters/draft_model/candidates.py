"""The most likely tokens after texts."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lattice_bpd.lattice.logits import select_top_k


class Best(NamedTuple):
    """The k most likely tokens after each of R texts.

    Attributes:
        token_ids: (R, k) int32, best first, equal ones by rising id.
        scores: (R, k) float32, their logits or log probabilities.
        failed: (R,) bool, whether the logits are no numbers; the tokens are of no use then.
    """

    token_ids: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]
    failed: npt.NDArray[np.bool_]


def find_failed(logits: Tensor) -> npt.NDArray[np.bool_]:
    """Of (R, V) logits the rows with NaN or +inf, or without a number: (R,) bool."""
    failed: npt.NDArray[np.bool_] = (~logits.amax(dim=-1).isfinite()).cpu().numpy()
    return failed  # NaN wins amax


def find_best(logits: Tensor, top_k: int, temperature: float | None = None) -> Best:
    """The top_k best of (R, V) logits; see `find_failed` for rows that have none.

    Scores are logits, or with a temperature the log probabilities of softmax(logits / temperature)
    over the whole vocabulary.
    """
    rows: Any = find_failed(logits)
    if rows.any():
        failed = torch.from_numpy(rows).to(logits.device)
        logits = logits.masked_fill(failed[:, None], 0.0)
    is_normalized = temperature is not None
    if temperature is not None and temperature != 1.0:
        logits = logits.float() / temperature
    top_k = min(top_k, logits.shape[1])
    best = select_top_k(logits, top_k, log_softmax=is_normalized, where="DraftModelDrafter")
    return Best(best.token_ids[0], best.scores[0], rows)
