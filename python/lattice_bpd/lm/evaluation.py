"""How well n-gram LMs predict a text: perplexity, unknown tokens, hits by order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lattice_bpd import _core
from lattice_bpd.lm.ngram import NGramLM, core_of
from lattice_bpd.lm.training import RaggedIds, flatten_sequences


@dataclass(frozen=True)
class TextScore:
    """What one LM says about a text.

    Attributes:
        tokens: events scored: every token, and ``</s>`` behind each sequence.
        unknown: tokens to which the LM gives no probability of its own; not in log_prob.
        log_prob: sum of ln P of all other events.
        hits: for each order n from 1, how many of those an n-gram of that order predicted.
    """

    tokens: int
    unknown: int
    log_prob: float
    hits: list[int]

    @property
    def perplexity(self) -> float:
        """exp(-log_prob / known events); nan where there are none."""
        known = self.tokens - self.unknown
        return math.exp(-self.log_prob / known) if known else math.nan

    @property
    def unknown_rate(self) -> float:
        """Share of the events that are unknown tokens."""
        return self.unknown / self.tokens


def evaluate_ngram(
    lm: NGramLM,
    sequences: Iterable[Any] | RaggedIds,
    *,
    bos: bool = True,
    eos: bool = True,
    threads: int = 0,
) -> TextScore:
    """Scores a text in one pass.

    Args:
        lm: the LM.
        sequences: 1-D integer arrays, one a sentence or document; or a RaggedIds.
        bos: whether ``<s>`` stands before each sequence.
        eos: whether ``</s>`` behind each is scored.
        threads: 0 for every core; the result does not depend on it.

    Raises:
        TypeError: a sequence holds something else than integers.
        ValueError: a token id outside the vocabulary, or no text.
    """
    core = core_of("evaluate_ngram", lm)
    ragged = flatten_sequences(sequences, lm.vocab_size)
    return TextScore(*_core.evaluate_lm(core, ragged.token_ids, ragged.offsets, bos, eos, threads))


def compare_lines(scores: Mapping[str, TextScore]) -> Iterator[str]:
    """A table of LMs side by side, for people."""
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
