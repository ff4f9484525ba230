"""Entropies of the heads and h_max (Kim et al. 2024, section 6.2, figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lattice_bpd_kim2024.replay.replay import Recording

BINS = 32


def measure_entropies(recording: Recording, bins: int = BINS) -> dict[str, Any]:
    """Entropies of heads 1..h at all recorded positions, in nats; head 1 is the target's own.

    Returns:
        {means: of each head, h_max, edges: of the bins, the same for all heads, histograms: for
        each head the share of positions in each bin}.
    """
    entropies = np.concatenate([text.entropies for text in recording.texts])  # (P, h)
    edges = np.linspace(0.0, max(float(entropies.max()), 1e-6), bins + 1)
    means = entropies.mean(axis=0, dtype=np.float64).tolist()
    shares = [np.histogram(head, edges)[0] / len(entropies) for head in entropies.T]
    histograms = [share.tolist() for share in shares]
    return {
        "means": means, "h_max": h_max(means), "edges": edges.tolist(), "histograms": histograms,
    }  # fmt: skip


def h_max(means: Sequence[float]) -> int:
    """The head up to which mean entropies never fall, heads counted from 1.

    The largest k with H[i] <= H[i + 1] for all i < k. Means 1 2 3 2: 3. Means 2 1: 1.
    """
    head = 1
    while head < len(means) and means[head - 1] <= means[head]:
        head += 1
    return head


def correlate(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's correlation; None for fewer than three pairs, or where one side is constant."""
    if len(first) != len(second):
        raise ValueError(f"correlate: {len(first)} and {len(second)} numbers; expected as many")
    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def fit_line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float] | None:
    """Slope and intercept of the least-squares line (figure 3b); None where `correlate` is."""
    if correlate(xs, ys) is None:
        return None
    slope, intercept = np.polyfit(xs, ys, 1)
    return float(slope), float(intercept)
