"""Where drafts are accepted: by length, by slot, and as often as their probability says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lattice_bpd.draft.rescore import rescore_tree
from lattice_bpd.evaluate.replay.positions import Rescorers
from lattice_bpd.evaluate.replay.replay import Recording, Replayed
from lattice_bpd.evaluate.replay.settings import DraftOptions
from lattice_bpd.evaluate.statistics.loops import count_looping

BINS = 10
LOOP_EDGES = (0.0, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class SlotAcceptance:
    """Verifying calls that could use a slot, and what became of it.

    Attributes:
        slot: 0..H-1.
        calls: that could use it.
        accepted: share of those that kept a draft token there, 0..1.
        accepted_if_reached: share of those that kept all before it as well; None where none did.
    """

    slot: int
    calls: int
    accepted: float
    accepted_if_reached: float | None


@dataclass(frozen=True)
class CalibrationBin:
    """Prefixes of like probability.

    Attributes:
        low: lower end of the bin.
        high: upper end.
        prefixes: how many.
        predicted: their mean probability.
        accepted: share that the target wrote.
    """

    low: float
    high: float
    prefixes: int
    predicted: float
    accepted: float


@dataclass(frozen=True)
class Calibration:
    """Probabilities of rescored prefixes against acceptance.

    Attributes:
        bins: those that hold a prefix.
        error: mean distance of predicted and accepted, weighed by prefixes (expected calibration
            error).
    """

    bins: list[CalibrationBin]
    error: float

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def accept_histogram(replayed: Replayed, num_slots: int) -> list[int]:
    """Verifying calls that kept 0, 1, .. num_slots draft tokens."""
    found: list[int] = np.bincount(replayed.accepted, minlength=num_slots + 1).tolist()
    return found


def acceptance_by_slot(replayed: Replayed, num_slots: int) -> list[SlotAcceptance]:
    """What became of each slot; slots that no call could use are left out."""
    found = []
    for slot in range(num_slots):
        usable = replayed.accepted[replayed.slots > slot]
        if len(usable):
            reached, kept = int((usable >= slot).sum()), int((usable > slot).sum())
            found.append(
                SlotAcceptance(
                    slot, len(usable), kept / len(usable), kept / reached if reached else None
                )
            )
    return found


def measure_calibration(
    recording: Recording,
    rescorers: Rescorers,
    options: DraftOptions,
    replayed: Replayed,
    bins: int = BINS,
) -> Calibration:
    """How often prefixes of a tree are accepted, by their probability among the lattice's paths.

    Args:
        recording: positions.
        rescorers: with or without an LM.
        options: of the strategy "tree".
        replayed: gives the positions where decoding stops; others would tell of prefixes that
            nobody drafts.
        bins: between 0 and 1.
    """
    predicted, accepted = [], []
    for _, batch in recording.batches(replayed.places):
        found, contexts = batch.top(options.top_k), batch.contexts
        tree = rescore_tree(
            found.at_temperature(options.temperature), contexts, rescorers.lm,
            max_nodes=options.max_nodes, alpha=options.alpha / options.temperature,
            threads=rescorers.threads,
        )  # fmt: skip
        wanted = np.take_along_axis(batch.wanted, tree.depths, axis=1)
        right = tree.token_ids == wanted
        for node in range(right.shape[1]):  # a prefix is right if all of its tokens are
            parent = tree.parents[:, node]
            rows = np.arange(len(parent))
            right[:, node] &= np.where(parent >= 0, right[rows, np.maximum(parent, 0)], True)
        known = (tree.token_ids >= 0) & (wanted >= 0)  # behind the end nobody knows
        predicted.append(np.exp(tree.log_probs[known]))
        accepted.append(right[known])
    return _to_bins(np.concatenate(predicted or [[]]), np.concatenate(accepted or [[]]), bins)


def _to_bins(predicted: Any, accepted: Any, count: int) -> Calibration:
    places = np.minimum((predicted * count).astype(int), count - 1)
    bins = []
    for place in np.unique(places).tolist():
        mine = places == place
        bins.append(
            CalibrationBin(
                place / count, (place + 1) / count, int(mine.sum()),
                float(predicted[mine].mean()), float(accepted[mine].mean()),
            )
        )  # fmt: skip
    total = sum(found.prefixes for found in bins)
    error = sum(found.prefixes * abs(found.predicted - found.accepted) for found in bins)
    return Calibration(bins, error / total if total else 0.0)


@dataclass(frozen=True)
class LoopGroup:
    """Texts whose output loops about as much.

    Attributes:
        low: share of looping positions is above this (0 for the first group: exactly 0).
        high: and at most this.
        texts: how many.
        block_efficiency: of the strategy on them.
        gain: relative to the baseline.
    """

    low: float
    high: float
    texts: int
    block_efficiency: float
    gain: float


def looping_shares(recording: Recording) -> list[float]:
    """For each text the share of output positions that loop; see `evaluate.loops`."""
    return [
        count_looping(text.prompt.tolist(), text.output.tolist()) / len(text.output)
        for text in recording.texts
    ]


def gains_by_loops(
    shares: Sequence[float], replayed: Replayed, baseline: Replayed
) -> list[LoopGroup]:
    """Gains by share of looping output; groups without a text are left out.

    Args:
        shares: of each text, from `looping_shares`.
        replayed: the strategy.
        baseline: what it is compared with, on the same texts.
    """
    values = np.asarray(shares)
    groups = []
    for low, high in zip((0.0, *LOOP_EDGES[:-1]), LOOP_EDGES, strict=True):
        chosen = np.flatnonzero((values <= high) & ((values > low) if high else (values == 0.0)))
        if len(chosen):
            mine, other = replayed.of(chosen.tolist()), baseline.of(chosen.tolist())
            groups.append(LoopGroup(low, high, len(chosen), mine, mine / other - 1.0))
    return groups


__all__ = [
    "Calibration",
    "CalibrationBin",
    "LoopGroup",
    "SlotAcceptance",
    "accept_histogram",
    "acceptance_by_slot",
    "gains_by_loops",
    "looping_shares",
    "measure_calibration",
]
