"""N-gram caches of an engine's requests, fed with their texts."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

from lattice_bpd.decode.drafters.ngram_caches import DEFAULT_ORDER
from lattice_bpd.lm.context import ContextNGram
from lattice_bpd.lm.ngram import NGramLM


@dataclass
class _Fed:
    """A request's cache, and how many tokens of its text it has seen."""

    cache: ContextNGram
    tokens: int = 0


class RequestCaches:
    """A `ContextNGram` for each request, by the engine's name of it.

    Args:
        vocab_size: V.
        order: n of the caches, 1..6; True: the default.
        lm: the LM that they are mixed with, or None.
    """

    def __init__(self, vocab_size: int, order: bool | int, lm: NGramLM | None) -> None:
        self.order = DEFAULT_ORDER if order is True else int(order)
        self._vocab_size, self._lm = vocab_size, lm
        self._fed: dict[str, _Fed] = {}

    def update(self, names: Sequence[str], texts: Sequence[Any]) -> list[ContextNGram]:
        """The caches of requests, which have seen their texts afterwards.

        Args:
            names: (B,) of the requests.
            texts: (B,) their token ids, (T,) ints each, the exact token last.
        """
        caches = []
        for name, text in zip(names, texts, strict=True):
            fed = self._fed.get(name)
            if fed is None or fed.tokens > len(text):
                fed = self._fed[name] = _Fed(ContextNGram(self._vocab_size, self.order))
            fed.cache.update(text[fed.tokens :], self._lm)
            fed.tokens = len(text)
            caches.append(fed.cache)
        return caches

    def forget(self, active: Container[str]) -> None:
        """Drop the caches of requests that ended."""
        for name in [name for name in self._fed if name not in active]:
            del self._fed[name]

    def __len__(self) -> int:
        """The number of caches."""
        return len(self._fed)
