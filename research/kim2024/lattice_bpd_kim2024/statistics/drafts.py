"""Repetition, wins and losses of drafts before and after rescoring (paper tables 3 and 5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.token_ids import Int32Array, Int64Array
from lattice_bpd_kim2024.replay.positions import Rescorers
from lattice_bpd_kim2024.replay.replay import Recording
from lattice_bpd_kim2024.replay.strategies import STRATEGIES, Strategy

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class FirstDrafts:
    """The best draft at P positions.

    Attributes:
        tokens: (P, 1 + H) int32, the exact token and the draft; negative after its end.
        accepted: (P,) int64, accepted draft tokens.
    """

    tokens: Int32Array
    accepted: Int64Array

    @property
    def repeats(self) -> Mask:
        """(P, H) whether a token equals the one before it."""
        return np.asarray((self.tokens[:, 1:] == self.tokens[:, :-1]) & (self.tokens[:, 1:] >= 0))


def first_drafts(
    recording: Recording, strategy: Strategy, rescorers: Rescorers, options: DraftConfig
) -> FirstDrafts:
    """The first draft of a strategy at all positions that can use a slot.

    Args:
        recording: positions.
        strategy: any that drafts a list.
        rescorers: what it may use.
        options: its options.
    """
    strategy.check(rescorers, options, recording.top_k)
    positions = np.flatnonzero(recording.slots > 0)
    tokens = np.full((len(positions), 1 + recording.num_slots), -1, np.int32)
    tokens[:, 0] = recording.token_ids[positions]
    accepted = np.zeros(len(positions), np.int64)
    for chosen, batch in recording.batches(positions):
        first = strategy.draft(batch, rescorers, options).paths[:, :1]
        tokens[chosen, 1 : 1 + first.shape[2]] = first[:, 0]
        accepted[chosen] = batch.accept_lengths(first)
    return FirstDrafts(tokens, accepted)


def argmax_drafts(recording: Recording, options: DraftConfig) -> FirstDrafts:
    """The argmax of the heads at all positions that can use a slot."""
    return first_drafts(recording, STRATEGIES["bpd"], Rescorers(), options)


def measure_repetition(drafts: FirstDrafts) -> dict[str, float]:
    """Repetition of drafts, exact token included (table 3); all zeros without drafts.

    Returns:
        {consecutive: share of neighboring tokens that are equal, 0..1, longest_run: mean length of
        the longest run of one token, 1 without repetition, drafts: how many}.
    """
    if not len(drafts.tokens):
        return {"consecutive": 0.0, "longest_run": 0.0, "drafts": 0}
    repeats = drafts.repeats
    run: npt.NDArray[np.int64] = np.ones(len(repeats), np.int64)
    longest = run
    for column in repeats.T:
        run = np.where(column, run + 1, 1)
        longest = np.maximum(longest, run)
    pairs = (drafts.tokens[:, 1:] >= 0).sum()
    share = float(repeats.sum() / pairs) if pairs else 0.0
    return {
        "consecutive": share, "longest_run": float(longest.mean()), "drafts": len(repeats),
    }  # fmt: skip


def compare_drafts(before: FirstDrafts, after: FirstDrafts) -> dict[str, float]:
    """Rescored drafts against the argmax of the heads, position by position (table 5).

    Returns:
        {ties, wins, losses: positions where the rescored draft is accepted equally far, further,
        and less far; win_repair, loss_repair: share of them, 0..1, where rescoring eliminates
        repetition (the argmax repeats a token, the rescored draft none); win_regress, loss_regress:
        share where it introduces repetition (the other way round)}.
    """
    wins, losses = after.accepted > before.accepted, after.accepted < before.accepted
    repeated: Mask = np.any(before.repeats, axis=1)
    repeats: Mask = np.any(after.repeats, axis=1)
    repaired, regressed = repeated & ~repeats, ~repeated & repeats
    return {
        "ties": int((~wins & ~losses).sum()),
        "wins": int(wins.sum()),
        "losses": int(losses.sum()),
        "win_repair": _share(repaired, wins),
        "win_regress": _share(regressed, wins),
        "loss_repair": _share(repaired, losses),
        "loss_regress": _share(regressed, losses),
    }


def _share(part: Mask, whole: Mask) -> float:
    return float((part & whole).sum() / whole.sum()) if whole.any() else 0.0
