"""Greedy rescoring of a lattice with any transition scorer: Kim et al. 2024, algorithm 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd.draft.drafts import Drafts
from lattice_bpd.draft.scorers.protocol import Int32Array, TransitionScorer
from lattice_bpd.lattice.logits import Candidates

_IMPOSSIBLE = -1e6  # replaces -inf, so that 0 and negative weights give numbers


def rescore_greedily(
    candidates: Candidates,
    contexts: Sequence[Sequence[int]],
    scorer: TransitionScorer,
    *,
    alpha: float = 0.5,
) -> Int32Array:
    """One draft of each lattice: for each slot the token of greatest score + alpha * ln P.

    P is the scorer's probability of the token after the context and the draft's earlier tokens.
    (The paper adds the rescorer's logits, which differ by a constant for each history.)

    Args:
        candidates: the k best tokens of each slot of B lattices; see `select_top_k`. Tokens with
            score -inf are left out; a slot without other tokens ends its lattice.
        contexts: B sequences of token ids, all tokens before each lattice.
        scorer: scores transitions.
        alpha: weight of the scorer.

    Returns:
        (B, H) int32; ties go to the smaller token id. Drafts of a lattice that ended before slot H
        end in -1.

    Raises:
        IndexError: scores of another shape.
        FloatingPointError: scores that are NaN or +inf.
    """
    batch, slots = candidates.token_ids.shape[:2]
    drafts = np.full((batch, slots), Drafts.PAD_TOKEN, np.int32)
    is_open = np.logical_and.accumulate(~np.isneginf(candidates.scores).all(axis=2), axis=1)
    state = None
    for slot in range(int(is_open.sum(axis=1).max(initial=0))):
        if slot == 0:
            state = scorer.start(contexts)
        else:  # with a real token for lattices that ended
            state = scorer.advance(state, np.arange(batch), np.maximum(drafts[:, slot - 1], 0))
        token_ids = np.ascontiguousarray(candidates.token_ids[:, slot])
        total = candidates.scores[:, slot] + alpha * _log_probs(scorer, state, token_ids)
        is_best = total == total.max(axis=1, keepdims=True)
        best = np.where(is_best, token_ids, np.iinfo(np.int32).max).min(axis=1)
        drafts[:, slot] = np.where(is_open[:, slot], best, Drafts.PAD_TOKEN)
    return drafts


def _log_probs(
    scorer: TransitionScorer, state: Any, token_ids: Int32Array
) -> npt.NDArray[np.float64]:
    """(B, k) log probabilities of each lattice's candidates; -inf is replaced."""
    log_probs = np.asarray(scorer.score(state, token_ids), dtype=np.float64)
    name = type(scorer).__name__
    if log_probs.shape != token_ids.shape:
        raise IndexError(f"{name}.score gave shape {log_probs.shape}; expected {token_ids.shape}")
    if np.isnan(log_probs).any() or np.isposinf(log_probs).any():
        raise FloatingPointError(f"{name}.score gave NaN or +inf; expected log probabilities")
    return np.where(np.isneginf(log_probs), _IMPOSSIBLE, log_probs)
