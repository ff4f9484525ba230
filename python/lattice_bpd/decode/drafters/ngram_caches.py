"""The n-gram cache of each sequence that a drafter serves, updated with prompt and output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lattice_bpd.decode.drafters.per_sequence import PerSequence
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.lm.context import ContextNGram
from lattice_bpd.lm.ngram import NGramLM

DEFAULT_ORDER = 4


@dataclass
class _Fed:
    """A sequence's cache, and how many tokens of the sequence are in it."""

    cache: ContextNGram
    tokens: int = 0


class NGramCaches:
    """N-gram caches by sequence; each is dropped with its sequence.

    Args:
        order: of the caches, 1..6.
        lm: the static LM that they are interpolated with, or None.
    """

    def __init__(self, order: int, lm: NGramLM | None) -> None:
        self.order, self.lm = order, lm
        self._fed = PerSequence(self._begin)

    @classmethod
    def of_option(cls, ngram_cache: bool | int, lm: NGramLM | None) -> NGramCaches | None:
        """The caches for a value of `DraftConfig.ngram_cache`; None for False."""
        if ngram_cache is False:
            return None
        return cls(DEFAULT_ORDER if ngram_cache is True else ngram_cache, lm)

    def update(self, states: Sequence[DecodeState]) -> list[ContextNGram]:
        """The states' caches, updated with all tokens of their sequences."""
        return [self._update(state) for state in states]

    def _begin(self, state: DecodeState) -> _Fed:
        return _Fed(ContextNGram(state.model.vocab_size, self.order))

    def _update(self, state: DecodeState) -> ContextNGram:
        fed = self._fed.of(state)
        if fed.tokens > len(state.tokens):
            fed = self._fed.renew(state)
        fed.cache.update(state.tokens[fed.tokens :], self.lm)
        fed.tokens = len(state.tokens)
        return fed.cache

    def __len__(self) -> int:
        """The number of sequences that still exist."""
        return len(self._fed)
