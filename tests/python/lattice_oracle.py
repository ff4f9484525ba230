"""Probabilities of all paths through lattices with transitions, by enumeration.

Nothing here calls lattice_bpd. All numbers are float64, without a score grid.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oracles import ArpaOracle

Path = tuple[int, ...]


@dataclass
class LatticeOracle:
    """One lattice, scored by the definition of `LatticeInput`.

    Attributes:
        token_ids: (H, k) ints.
        scores: (H, k) unary scores; -inf masks.
        start: (k,) or None.
        transitions: (H-1, k, k) or None.
        unary: as in `LatticeInput`.
        lm: or None.
        context: the tokens before.
        alpha: weight of the LM.
        temperature: divides all.
    """

    token_ids: Any
    scores: Any
    start: Any = None
    transitions: Any = None
    unary: str = "added"
    lm: ArpaOracle | None = None
    context: Sequence[int] = ()
    alpha: float = 1.0
    temperature: float = 1.0

    @property
    def num_slots(self) -> int:
        """Slots before the first that is masked altogether."""
        is_open = ~np.isneginf(self.scores).all(axis=1)
        return int(np.logical_and.accumulate(is_open).sum())

    def candidates(self, slot: int) -> list[int]:
        """Indices of the candidates that are not masked, by token id."""
        kept = np.flatnonzero(~np.isneginf(self.scores[slot]))
        return sorted(kept.tolist(), key=lambda i: int(self.token_ids[slot][i]))

    def row(self, prefix: Path) -> dict[int, float]:
        """The score of each next candidate after a prefix of candidate indices."""
        slot = len(prefix)
        row = {}
        for i in self.candidates(slot):
            score = float(self.scores[slot][i]) if self.unary == "added" else 0.0
            if self.start is not None:
                before = self.start if slot == 0 else self.transitions[slot - 1][prefix[-1]]
                score += float(before[i])
            if self.lm is not None:
                history = self.lm.history([*self.context, *self.tokens(prefix)])
                score += self.alpha * self.lm.log_prob(history, int(self.token_ids[slot][i]))
            row[i] = score / self.temperature
        return row

    def local_row(self, prefix: Path) -> dict[int, float]:
        """ln of the softmax of `row`."""
        row = self.row(prefix)
        total = np.logaddexp.reduce(list(row.values()))
        return {i: score - float(total) for i, score in row.items()}

    def tokens(self, prefix: Path) -> Path:
        """Token ids of candidate indices."""
        return tuple(int(self.token_ids[slot][i]) for slot, i in enumerate(prefix))

    def paths(self) -> list[Path]:
        """All paths as candidate indices."""
        slots = [self.candidates(slot) for slot in range(self.num_slots)]
        return list(itertools.product(*slots)) if slots else []

    def score(self, path: Path, normalization: str) -> float:
        """The score of a prefix or path: the sum of its rows."""
        row = self.row if normalization == "global" else self.local_row
        return sum(row(path[:slot])[path[slot]] for slot in range(len(path)))

    def log_masses(self, normalization: str) -> dict[Path, float]:
        """ln of the probability of every prefix of one token or more, by token ids."""
        scores = {path: self.score(path, normalization) for path in self.paths()}
        total = np.logaddexp.reduce(list(scores.values())) if scores else 0.0
        logs: dict[Path, float] = {}
        for path, score in scores.items():
            for length in range(1, len(path) + 1):
                prefix = self.tokens(path[:length])
                log = score - float(total)
                logs[prefix] = float(np.logaddexp(logs[prefix], log)) if prefix in logs else log
        return logs

    def walk(self) -> Path:
        """Token ids of the greedy walk: the best of each row, the smaller id of equal ones."""
        path: Path = ()
        while len(path) < self.num_slots:
            row = self.row(path)
            path = (*path, max(row, key=lambda i: row[i]))
        return self.tokens(path)


def accept_length_of(logs: dict[Path, float], path: Path) -> float:
    """The sum of the probabilities of a path's prefixes."""
    return float(sum(np.exp(logs[path[:n]]) for n in range(1, len(path) + 1)))
