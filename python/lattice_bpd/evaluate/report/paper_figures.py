"""Block efficiencies of Kim et al. 2024 beside which a run's own can stand (tables 1 and 4)."""

from __future__ import annotations

from typing import NamedTuple


class PaperLine(NamedTuple):
    """A task's line of table 4: block efficiencies over the top-16 lattice."""

    bpd: float
    neural: float
    ngram_1best: float
    p_best_0gram: float
    p_best_ngram: float
    oracle: float


PAPER_TABLE_4 = {
    "lambada": PaperLine(3.12, 3.08, 3.05, 3.23, 3.29, 3.67),
    "squad": PaperLine(2.08, 2.10, 2.07, 2.18, 2.22, 2.45),
    "cnndm": PaperLine(1.74, 1.73, 1.73, 1.82, 1.83, 2.26),
    "samsum": PaperLine(1.27, 1.39, 1.29, 1.37, 1.45, 1.95),
    "multinews": PaperLine(1.10, 1.25, 1.12, 1.13, 1.22, 1.43),
    "xsum": PaperLine(1.13, 1.23, 1.16, 1.18, 1.26, 1.55),
    "newsroom": PaperLine(1.08, 1.29, 1.18, 1.11, 1.31, 1.50),
}
"""By task. Models of 1.5 B parameters, finetuned for each task, 9 heads, an LM of C4."""

STRATEGY_FIELDS = ("bpd", "ngram_1best", "p_best_0gram", "p_best_ngram", "oracle")
"""Strategies that go by the same name here."""


def paper_efficiency(task: str, strategy: str) -> float | None:
    """The paper's block efficiency; None where it has none for the task or the strategy."""
    line = PAPER_TABLE_4.get(task)
    return getattr(line, strategy) if line and strategy in STRATEGY_FIELDS else None


def paper_gain(task: str, strategy: str) -> float | None:
    """The paper's gain over BPD, as a fraction of 1; None where it has none."""
    value, bpd = paper_efficiency(task, strategy), paper_efficiency(task, "bpd")
    return None if value is None or not bpd else value / bpd - 1.0
