"""The cache of each sequence that a drafter serves, fed with its prompt and output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lattice_bpd.decode.drafters.per_sequence import BySequence
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.lm.context import ContextNGram
from lattice_bpd.lm.ngram import NGramLM

DEFAULT_ORDER = 4


@dataclass
class _Fed:
    """A sequence's cache, and how many of the sequence's tokens it has seen."""

    cache: ContextNGram
    tokens: int = 0


class SequenceCaches:
    """Caches by sequence; one goes when its sequence does.

    So one drafter may serve several sequences at once, each as if it were alone.

    Args:
        order: of the caches, 1..6.
        lm: the static LM that they are mixed with, or None.

    Raises:
        ValueError: an order out of range.
    """

    def __init__(self, order: int, lm: NGramLM | None) -> None:
        ContextNGram(1, order)  # says what is wrong with the order before anything is decoded
        self.order, self.lm = order, lm
        self._fed = BySequence(self._begin)

    @classmethod
    def of_option(cls, cache: bool | int, lm: NGramLM | None) -> SequenceCaches | None:
        """What the drafters' option `cache` asks for: None, or caches of an order.

        Raises:
            TypeError: neither bool nor int.
            ValueError: an order out of range.
        """
        if not isinstance(cache, int):
            raise TypeError(
                f"cache is {cache!r}; expected True, False or an order (a ContextNGram of your own "
                "goes to rescore_lattice or rescore_tree)"
            )
        if cache is False:
            return None
        return cls(DEFAULT_ORDER if cache is True else cache, lm)

    def update(self, states: Sequence[DecodeState]) -> list[ContextNGram]:
        """The states' caches, which have seen all tokens of their sequences."""
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
        """The number of sequences that are still there."""
        return len(self._fed)
