"""Batched verification: p drafts of one sequence as p rows of one call of the target.

    cache      y_1 .. y_t                                  (one row, repeated p times)
    input      y_{t+1}  d_1     d_2     ..  d_H            (p, H+1), y_{t+1} is exact
    predicts   g_1      g_2     g_3     ..  g_{H+1}        (p, H+1), the target's argmax
    accepted   the longest prefix of a row with d_j = g_j; then g_{n+1} comes free (bonus token)

The row with the longest accepted prefix wins; the cache keeps that row up to its last accepted
token. Stern et al. 2018, section 3 and 4 (verification merged with the next prediction); Kim et
al. 2024, section 7.2 (p drafts in parallel).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Cache

from lattice_bpd.models import BlockwiseLM
from lattice_bpd.verify.cache import keep_row


@dataclass
class Verification:
    """What one verifying call decided.

    Attributes:
        token_ids: the n accepted draft tokens and the bonus token, n+1 in all; each is the
            target's own argmax.
        accept_length: n, 0..H.
        row: the draft that was accepted; the first one where several accept n tokens.
        hidden: (D,) float, the hidden state that predicted the bonus token; the next heads
            start from it.
    """

    token_ids: list[int]
    accept_length: int
    row: int
    hidden: Tensor


def greedy_tokens(logits: Tensor) -> Tensor:
    """The target's choice at each position; every strategy decides with this one function.

    Args:
        logits: (..., V) float.

    Returns:
        (...) int64; the smallest id where several logits share the maximum.

    Raises:
        ValueError: a NaN among the logits.
    """
    best, token_ids = logits.max(dim=-1)  # the first maximum, by torch's contract
    if bool(best.isnan().any()):  # max() hands a NaN on, so looking at the maxima suffices
        raise ValueError(
            "verify_drafts: the target's logits hold NaN; expected numbers; check its weights, "
            "and its dtype (float16 overflows on some models: use bfloat16 or float32)"
        )
    return token_ids


def accept_lengths(drafts: Tensor, predictions: Tensor) -> Tensor:
    """How many leading tokens of each draft the target agrees with.

    Args:
        drafts: (p, H) int64.
        predictions: (p, H+1) int64 or (p, H); column j is the target's token in place of draft j.

    Returns:
        (p,) int64, 0..H. Drafts 5 7 9 against 5 7 2 8: 2.
    """
    agrees = drafts == predictions[:, : drafts.shape[1]]
    return agrees.long().cumprod(dim=1).sum(dim=1)


@torch.inference_mode()
def verify_drafts(
    model: BlockwiseLM, cache: Cache, exact_token: int, drafts: Tensor
) -> Verification:
    """Verify p drafts with one call of the target and roll its cache to what was accepted.

    Args:
        model: the target.
        cache: one row that covers y_1..y_t. Afterwards it covers y_1..y_{t+1} and the n accepted
            tokens; the bonus token is not in it yet.
        exact_token: y_{t+1}, which the target has already chosen.
        drafts: (p, H) int64 on any device; p at least 1, H may be 0 (plain greedy decoding).
            Equal rows are verified once.

    Returns:
        Verification.

    Raises:
        ValueError: drafts is not (p, H) with p >= 1, or the logits hold NaN.
    """
    if drafts.ndim != 2 or drafts.shape[0] == 0:
        raise ValueError(
            f"verify_drafts: drafts has shape {tuple(drafts.shape)}; expected (drafts, slots) "
            "with one draft or more; give a (1, 0) tensor where there is nothing to verify"
        )
    drafts, source_rows = _unique_rows(drafts)
    num_rows, num_slots = drafts.shape
    rows = torch.cat([drafts.new_full((num_rows, 1), exact_token), drafts], dim=1)  # (p, H+1)
    if num_rows > 1:
        cache.batch_repeat_interleave(num_rows)
    output = model(rows.to(model.device), cache)
    predictions = greedy_tokens(output.logits)  # (p, H+1)
    lengths = accept_lengths(rows[:, 1:].to(predictions.device), predictions)
    row = int(lengths.argmax())
    length = int(lengths[row])
    keep_row(cache, row, num_rows, num_slots - length)
    return Verification(
        token_ids=[int(token) for token in predictions[row, : length + 1].tolist()],
        accept_length=length,
        row=source_rows[row],
        hidden=output.hidden[row, length],
    )


def _unique_rows(drafts: Tensor) -> tuple[Tensor, list[int]]:
    """The distinct rows of (p, H) in their first order, and where each came from."""
    if drafts.shape[0] == 1:
        return drafts, [0]
    first_rows: dict[tuple[int, ...], int] = {}
    for index, row in enumerate(drafts.tolist()):
        first_rows.setdefault(tuple(row), index)
    kept = list(first_rows.values())
    return (drafts if len(kept) == drafts.shape[0] else drafts[kept]), kept
