"""Acceptance of drafts by length, slot, looping share and predicted probability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.draft.rescore import rescore_tree
from lattice_bpd_kim2024.replay.positions import Rescorers
from lattice_bpd_kim2024.replay.replay import Recording, Replayed
from lattice_bpd_kim2024.statistics.loops import count_looping

BINS = 10
LOOP_EDGES = (0.0, 0.25, 0.5, 1.0)
Row = dict[str, Any]


def accept_histogram(replayed: Replayed, num_slots: int) -> list[int]:
    """Number of verifying calls that accepted 0, 1, .. num_slots draft tokens."""
    counts: list[int] = np.bincount(replayed.accepted, minlength=num_slots + 1).tolist()
    return counts


def acceptance_by_slot(replayed: Replayed, num_slots: int) -> list[Row]:
    """Acceptance of each slot that some call can use.

    Returns:
        {slot: 0..H-1, calls: that can use it, accepted: share of these that accept a token there,
        accepted_if_reached: the same share among calls that accept all slots before it, or None}.
    """
    rows = []
    for slot in range(num_slots):
        usable = replayed.accepted[replayed.slots > slot]
        if len(usable):
            reached, accepted = int((usable >= slot).sum()), int((usable > slot).sum())
            rows.append(
                {
                    "slot": slot,
                    "calls": len(usable),
                    "accepted": accepted / len(usable),
                    "accepted_if_reached": accepted / reached if reached else None,
                }
            )
    return rows


def measure_calibration(
    recording: Recording,
    rescorers: Rescorers,
    options: DraftConfig,
    replayed: Replayed,
    bins: int = BINS,
) -> Row:
    """How often prefixes of a tree are accepted, by their probability among the lattice's paths.

    Args:
        recording: positions.
        rescorers: with or without an LM.
        options: of the strategy "tree".
        replayed: gives the positions of verifying calls; no other prefixes are ever drafted.
        bins: number of bins between 0 and 1.

    Returns:
        {bins: those with prefixes, [{low, high, prefixes: how many, predicted: mean probability,
        accepted: share that agrees with the output}], error: expected calibration error}.
    """
    predicted, accepted = [], []
    for _, batch in recording.batches(replayed.places):
        tree = rescore_tree(
            batch.lattice(options).at_temperature(options.temperature), batch.contexts,
            rescorers.lm, max_nodes=options.tree_nodes, alpha=options.alpha / options.temperature,
            threads=rescorers.threads,
        )  # fmt: skip
        wanted = np.take_along_axis(batch.wanted, tree.depths, axis=1)
        right = tree.token_ids == wanted
        rows = np.arange(len(right))
        for node in range(right.shape[1]):  # a prefix is right if all of its tokens are
            parent = tree.parents[:, node]
            right[:, node] &= np.where(parent >= 0, right[rows, np.maximum(parent, 0)], True)
        known = (tree.token_ids >= 0) & (wanted >= 0)  # nothing is known after the output's end
        predicted.append(np.exp(tree.log_probs[known]))
        accepted.append(right[known])
    return _to_bins(np.concatenate(predicted or [[]]), np.concatenate(accepted or [[]]), bins)


def _to_bins(predicted: Any, accepted: Any, count: int) -> Row:
    indices = np.minimum((predicted * count).astype(int), count - 1)
    rows = []
    for index in np.unique(indices).tolist():
        inside = indices == index
        rows.append(
            {
                "low": index / count,
                "high": (index + 1) / count,
                "prefixes": int(inside.sum()),
                "predicted": float(predicted[inside].mean()),
                "accepted": float(accepted[inside].mean()),
            }
        )
    error = sum(row["prefixes"] * abs(row["predicted"] - row["accepted"]) for row in rows)
    return {"bins": rows, "error": error / max(1, len(indices))}


def looping_shares(recording: Recording) -> list[float]:
    """For each text the share of output positions that loop; see `statistics.loops`."""
    return [
        count_looping(text.prompt.tolist(), text.output.tolist()) / len(text.output)
        for text in recording.texts
    ]


def gains_by_loops(shares: Sequence[float], replayed: Replayed, baseline: Replayed) -> list[Row]:
    """Gains by share of looping output; groups without a text are left out.

    Args:
        shares: of each text, from `looping_shares`.
        replayed: the strategy.
        baseline: what it is compared with, on the same texts.

    Returns:
        {low, high: the texts' shares are above low and at most high (both 0: exactly 0), texts:
        how many, block_efficiency: of the strategy, gain: relative to the baseline}.
    """
    values = np.asarray(shares)
    rows = []
    for low, high in zip((0.0, *LOOP_EDGES[:-1]), LOOP_EDGES, strict=True):
        texts = np.flatnonzero((values <= high) & ((values > low) if high else (values == 0.0)))
        if len(texts):
            value, other = replayed.of(texts.tolist()), baseline.of(texts.tolist())
            row = {"low": low, "high": high, "texts": len(texts), "block_efficiency": value}
            rows.append({**row, "gain": value / other - 1.0})
    return rows
