"""How sure the heads are: entropies by head and h_max (Kim et al. 2024, section 6.2, figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lattice_bpd.evaluate.replay.replay import Recording

BINS = 32


@dataclass(frozen=True)
class HeadEntropies:
    """Entropies of heads 1..h in nats; head 1 is the target's own.

    Attributes:
        means: of each head.
        h_max: the head up to which mean entropies never fall.
        edges: of the histogram's bins, the same for all heads.
        histograms: for each head the share of positions in each bin.
    """

    means: list[float]
    h_max: int
    edges: list[float]
    histograms: list[list[float]]

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def measure_entropies(recording: Recording, bins: int = BINS) -> HeadEntropies:
    """Entropies of all heads at all recorded positions."""
    found = np.concatenate([text.entropies for text in recording.texts])  # (P, h)
    edges = np.linspace(0.0, max(float(found.max()), 1e-6), bins + 1)
    counts = [np.histogram(column, edges)[0] / len(found) for column in found.T]
    means = found.mean(axis=0, dtype=np.float64).tolist()
    return HeadEntropies(means, h_max(means), edges.tolist(), [c.tolist() for c in counts])


def h_max(means: Sequence[float]) -> int:
    """The largest k with H[i] <= H[i + 1] for all i < k, heads counted from 1.

    Means 1 2 3 2: 3. Means 2 1: 1.
    """
    head = 1
    while head < len(means) and means[head - 1] <= means[head]:
        head += 1
    return head


def correlate(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's correlation; None for fewer than three pairs, or where one side never changes."""
    if len(first) != len(second):
        raise ValueError(f"correlate: {len(first)} and {len(second)} numbers; expected as many")
    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])
