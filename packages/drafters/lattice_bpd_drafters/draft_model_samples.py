"""Samples of a draft model's next tokens, for targets that sample.

Under `Rejection` a draft token is a sample of q, the draft model's distribution after the target's
own temperature, top-k, top-p and min-p, with noise of its own: accepted with probability
min(1, p / q), so always where q = p. Under `Sampled` it is the sample of q by the target's noise:
the target's own sample where q = p (Leviathan et al. 2023; Daliri, Musco, Suresh 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from lattice_bpd import _core
from lattice_bpd.decode.drafters.target_noise import (
    draft_keys,
    rejects,
    sampling_warps,
    target_noise,
)
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.verify.acceptance.warp import Warp

Distribution = tuple[Any, Any]  # token ids (k,) and probabilities (k,) that sum to 1


class Children(NamedTuple):
    """Tokens sampled after one prefix, without replacement.

    Attributes:
        token_ids: in the order in which they were sampled.
        log_probs: of each, under q.
        sampled_from: q; None where the tokens are the favorites of the target's noise.
    """

    token_ids: list[int]
    log_probs: list[float]
    sampled_from: Distribution | None


@dataclass(frozen=True)
class DraftSampler:
    """Samples the drafts of one text in one step.

    Attributes:
        warp: makes q of the draft model's logits.
        key: of the noise.
        position: row of the target's noise that decides the first draft token; None: the noise is
            the draft's own, with a row for each prefix.
    """

    warp: Warp
    key: int
    position: int | None

    def sample(
        self, logits: Tensor, count: int, top_k: int | None, node: int, depth: int
    ) -> Children:
        """Up to `count` different tokens of probability above 0.

        Args:
            logits: (V,) float on the host, after the prefix.
            count: tokens to sample.
            top_k: sample from the k most likely tokens only; their probabilities are made to sum
                to 1. None: from all.
            node: number of the prefix's last node in its tree; -1: the exact token.
            depth: draft tokens of the prefix.
        """
        scores = self.warp.apply(logits)
        row = node + 1 if self.position is None else self.position + depth
        token_ids = np.flatnonzero(scores > -np.inf).astype(np.int32)
        if top_k is not None and top_k < len(token_ids):
            best = np.argpartition(-scores[token_ids], top_k - 1)[:top_k]
            token_ids = token_ids[best]
        probs = _softmax(scores[token_ids])
        if count == 1 and top_k is None:
            chosen = [_core.sample_token(scores, 1.0, self.key, row)]
            where = np.searchsorted(token_ids, chosen)
        else:
            noise = _core.gumbel_noise(self.key, row, token_ids[None])[0]
            with np.errstate(divide="ignore"):
                keys = np.log(probs) + noise
            where = np.argsort(-keys, kind="stable")[: min(count, int((probs > 0.0).sum()))]
            chosen = token_ids[where].tolist()
        with np.errstate(divide="ignore"):
            log_probs: list[float] = np.log(probs[where]).tolist()
        return Children(chosen, log_probs, (token_ids, probs) if self.position is None else None)


def prefers_samples(states: Sequence[DecodeState]) -> bool:
    """Whether sampled drafts are accepted more often than the most likely tokens.

    That is so under `Rejection`, and under `Sampled` where the target's noise is known.
    """
    return rejects(states) or target_noise(states, 1.0) is not None


def make_samplers(states: Sequence[DecodeState], temperature: float) -> list[DraftSampler]:
    """The sampler of each text; where the rule does not sample, of temperature 1.

    Args:
        states: active sequences.
        temperature: of the drafts, divides the logits besides the rule's temperature.
    """
    warps = sampling_warps(states) or [Warp()] * len(states)
    noise = target_noise(states, 1.0)
    keys = draft_keys(states) if noise is None else noise.keys
    positions: Sequence[Any] = [None] * len(states) if noise is None else noise.positions
    return [
        DraftSampler(replace(warp, temperature=warp.temperature * temperature), int(key), position)
        for warp, key, position in zip(warps, keys, positions, strict=True)
    ]


def _softmax(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """(k,) float64 probabilities of scores above -inf."""
    weights = np.exp(scores.astype(np.float64) - float(scores.max()))
    probs: npt.NDArray[np.float64] = weights / weights.sum()
    return probs
