"""Scores of n-gram LMs on a text: perplexity, unknown tokens, hits by order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TextScore:
    """The scores of one LM on a text.

    Attributes:
        tokens: number of events: all tokens, and ``</s>`` at the end of each sequence.
        unknown: number of tokens that the LM has no probability for; not in log_prob.
        log_prob: sum of ln P of all other events.
        hits: for each order n from 1, how many of those an n-gram of that order predicted.
    """

    tokens: int
    unknown: int
    log_prob: float
    hits: list[int]

    @property
    def perplexity(self) -> float:
        """exp(-log_prob / known events); nan if there are none."""
        known = self.tokens - self.unknown
        return math.exp(-self.log_prob / known) if known else math.nan

    @property
    def unknown_rate(self) -> float:
        """Fraction of the events that are unknown tokens."""
        return self.unknown / self.tokens


def compare_lines(scores: Mapping[str, TextScore]) -> Iterator[str]:
    """The lines of a table that compares LMs."""
    width = max(map(len, scores))
    order = max(len(score.hits) for score in scores.values())
    heads = "".join(f"{n}-grams".rjust(10) for n in range(order, 0, -1))
    yield f"{'LM':{width}}  {'perplexity':>12} {'events':>11} {'unknown':>8}{heads}"
    for name, score in scores.items():
        known = max(score.tokens - score.unknown, 1)
        hits = [*score.hits, *[0] * (order - len(score.hits))]
        shares = "".join(f"{hit / known:10.1%}" for hit in reversed(hits))
        yield (
            f"{name:{width}}  {score.perplexity:12.3f} {score.tokens:11,} "
            f"{score.unknown_rate:8.2%}{shares}"
        )
