"""Factors of the heads' scores, by head and by the entropy of a slot."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]


def weigh_heads(
    scores: Float32Array,
    head_scales: Sequence[float] | None,
    entropy_weight: float,
    where: str = "weigh_heads",
) -> Float32Array:
    """Scores multiplied by a factor for each head and slot.

    Args:
        scores: (.., H, k) float32, raw logits of the candidates; -inf masks a token.
        head_scales: H factors or more, above 0; None: 1 for each head. alpha divided by a head's
            factor is that head's own weight of the LM.
        entropy_weight: w; a slot's scores are multiplied by exp(-w e), where e is the entropy of
            the softmax over its candidates divided by ln k, 0..1. Above 0 uncertain heads count
            less.
        where: the caller's name, for error messages.

    Returns:
        (.., H, k) float32; the ranks of a slot's candidates do not change.

    Raises:
        ValueError: fewer head_scales than slots.
    """
    slots, top_k = scores.shape[-2:]
    if head_scales is not None and len(head_scales) < slots:
        raise ValueError(
            f"{where}: {len(head_scales)} head_scales for {slots} slots; expected one for each; "
            "tune for this model: lattice-bpd tune"
        )
    scales = np.ones(slots) if head_scales is None else np.asarray(head_scales[:slots])
    factors = np.broadcast_to(scales, scores.shape[:-1])
    if entropy_weight != 0.0 and top_k > 1:
        best = scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores.astype(np.float64) - np.where(np.isfinite(best), best, 0.0))
        total = weights.sum(axis=-1, keepdims=True)
        shares = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
        logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
        factors = factors * np.exp(entropy_weight * (shares * logs).sum(axis=-1) / math.log(top_k))
    return np.asarray(scores * factors[..., None], np.float32)
