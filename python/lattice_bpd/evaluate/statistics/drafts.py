"""Drafts before and after rescoring: repetition, wins and losses (paper tables 3 and 5)."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from lattice_bpd.evaluate.replay.positions import Rescorers
from lattice_bpd.evaluate.replay.replay import Recording
from lattice_bpd.evaluate.replay.settings import DraftOptions
from lattice_bpd.evaluate.replay.strategies import STRATEGIES, Strategy
from lattice_bpd.token_ids import Int32Array, Int64Array


@dataclass(frozen=True)
class Repetition:
    """Stutter of drafts (table 3); the exact token is a draft's first.

    Attributes:
        consecutive: share of neighbouring draft tokens that are the same, 0..1.
        longest_run: tokens of the longest run of one token, on average; 1 without repetition.
        drafts: how many.
    """

    consecutive: float
    longest_run: float
    drafts: int

    def to_json(self) -> dict[str, float]:
        """The fields by name."""
        return asdict(self)


@dataclass(frozen=True)
class WinsAndLosses:
    """Rescored drafts against the argmax of the heads, position by position (table 5).

    Attributes:
        ties: positions where both are accepted as far.
        wins: where the rescored draft is accepted further.
        losses: where it is accepted less far.
        win_repair: share of wins whose draft repeats less than before, 0..1.
        win_regress: share of wins whose draft repeats more.
        loss_repair: share of losses whose draft repeats less.
        loss_regress: share of losses whose draft repeats more.
    """

    ties: int
    wins: int
    losses: int
    win_repair: float
    win_regress: float
    loss_repair: float
    loss_regress: float

    def to_json(self) -> dict[str, float]:
        """The fields by name."""
        return asdict(self)


@dataclass(frozen=True)
class FirstDrafts:
    """The best draft at P positions.

    Attributes:
        tokens: (P, 1 + H) int32, the exact token and the draft; negative behind its end.
        accepted: (P,) int64.
    """

    tokens: Int32Array
    accepted: Int64Array

    @property
    def repeats(self) -> Int64Array:
        """(P,) neighbouring tokens that are the same."""
        return np.asarray(_same(self.tokens).sum(axis=1), np.int64)


def first_drafts(
    recording: Recording,
    strategy: Strategy,
    rescorers: Rescorers,
    options: DraftOptions,
    places: npt.NDArray[np.int64] | None = None,
) -> FirstDrafts:
    """The first draft of a strategy at recorded positions.

    Args:
        recording: positions.
        strategy: any that drafts a list.
        rescorers: what it may use.
        options: its numbers.
        places: positions 0..P-1; all that can use a slot when None.
    """
    strategy.check(rescorers, options, recording.top_k)
    places = np.flatnonzero(recording.slots > 0) if places is None else places
    tokens = np.full((len(places), 1 + recording.num_slots), -1, np.int32)
    tokens[:, 0] = recording.token_ids[places]
    accepted = np.zeros(len(places), np.int64)
    for chosen, batch in recording.batches(places):
        first = strategy.draft(batch, rescorers, options).paths[:, :1]
        tokens[chosen, 1 : 1 + first.shape[2]] = first[:, 0]
        accepted[chosen] = batch.accept_lengths(first)
    return FirstDrafts(tokens, accepted)


def measure_repetition(drafts: FirstDrafts) -> Repetition:
    """Repetition of drafts; all zeros where there are none."""
    if not len(drafts.tokens):
        return Repetition(0.0, 0.0, 0)
    pairs = (drafts.tokens[:, 1:] >= 0).sum()
    same = _same(drafts.tokens)
    run: npt.NDArray[np.int64] = np.ones(len(same), np.int64)
    longest = run
    for column in same.T:
        run = np.where(column, run + 1, 1)
        longest = np.maximum(longest, run)
    share = float(same.sum() / pairs) if pairs else 0.0
    return Repetition(share, float(longest.mean()), len(same))


def compare_drafts(before: FirstDrafts, after: FirstDrafts) -> WinsAndLosses:
    """Which drafts are accepted further, and whether repetition was mended there."""
    won, lost = after.accepted > before.accepted, after.accepted < before.accepted
    mended, worse = after.repeats < before.repeats, after.repeats > before.repeats
    return WinsAndLosses(
        int((~won & ~lost).sum()), int(won.sum()), int(lost.sum()),
        _share(mended, won), _share(worse, won), _share(mended, lost), _share(worse, lost),
    )  # fmt: skip


def argmax_drafts(recording: Recording, options: DraftOptions) -> FirstDrafts:
    """The argmax of the heads at all positions that can use a slot."""
    return first_drafts(recording, STRATEGIES["bpd"], Rescorers(), options)


def _same(tokens: Int32Array) -> npt.NDArray[np.bool_]:
    """(P, H) whether a token is that before it."""
    return np.asarray((tokens[:, 1:] == tokens[:, :-1]) & (tokens[:, 1:] >= 0))


def _share(part: npt.NDArray[np.bool_], whole: npt.NDArray[np.bool_]) -> float:
    return float((part & whole).sum() / whole.sum()) if whole.any() else 0.0
