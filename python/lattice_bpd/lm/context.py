"""ContextNGram, a cache LM over the text so far, mixed into a static LM."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.lm.ngram import NGramLM, core_of
from lattice_bpd.token_ids import to_token_ids


class ContextNGram:
    """N-grams of the text so far, for `rescore_lattice(..., ngram_cache=)` and `rescore_tree`.

    Texts repeat names, phrases and whole loops. With g_1, g_2, .. the suffixes of history h, of
    1, 2, .. order - 1 tokens, that occur in the text with a successor,

        P_0(w | h) = P(w | h) of the static LM           1 / vocab_size without one
        P_m(w | h) = (1 - l_m) P_{m-1}(w | h) + l_m c(g_m w) / c(g_m)
        l_m        = weight_m * c(g_m) / (c(g_m) + number of distinct successors of g_m)

    The weights adapt: each token of the text moves those of the lengths that match its history, up
    if the cache predicted it better than the static LM, and down otherwise. While all are below
    0.02 (0.15 without a static LM), the cache is ignored and costs nothing.

    Thread-safe: searches read a cache concurrently, and an update waits for them.

    Args:
        vocab_size: V; token ids lie in 0..V-1.
        order: n, 1..6: histories have up to n - 1 tokens, so none for 1.
        max_tokens: number of most recent tokens that are kept, 16..67108864.

    Raises:
        TypeError: arguments that are not integers.
        ValueError: arguments out of range.

    Source: cache LMs, Kuhn and De Mori 1990; history weights, Witten and Bell 1991; weights by
    online EM, Cappe and Moulines 2009.
    """

    def __init__(self, vocab_size: int, order: int = 4, *, max_tokens: int = 65536) -> None:
        self._core = _core.ContextNgram(
            _integer("vocab_size", vocab_size),
            _integer("order", order),
            _integer("max_tokens", max_tokens),
        )

    def update(self, token_ids: Any, lm: NGramLM | None = None, *, bos: bool = True) -> None:
        """Appends tokens to the text and adapts the weights.

        Args:
            token_ids: (T,) integers.
            lm: The static LM that searches use with this cache, or None.
            bos: Whether the text starts after ``<s>``.

        Raises:
            TypeError: Token ids that are not integers, or an lm that is not an NGramLM.
            ValueError: Token ids outside the vocabulary, or an LM of another one; the cache is
                unchanged.
        """
        self._core.update(self._ids(token_ids, "update"), _core_lm("update", lm), bool(bos))

    def log_prob(
        self, token_id: int, context: Any = (), lm: NGramLM | None = None, *, bos: bool = True
    ) -> float:
        """ln P(token_id | context) of the cache mixed with the static LM.

        Args:
            token_id: 0..V-1.
            context: (T,) token ids before it, usually the end of the text.
            lm: The static LM, or None.
            bos: Whether the context starts after ``<s>``.

        Raises:
            TypeError: As `update`.
            ValueError: As `update`.
        """
        word = self._ids([token_id], "log_prob: token_id")
        history = self._ids(context, "log_prob: context")
        return self._core.log_prob(int(word[0]), history, _core_lm("log_prob", lm), bool(bos))

    def clear(self) -> None:
        """Removes the text and resets the weights."""
        self._core.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles tokens and weights."""
        core = self._core
        sizes = (core.vocab_size, core.order, core.max_tokens)
        return _restored, (*sizes, core.text(), core.weights())

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        """(order - 1,) the weights of histories of 1, 2, .. tokens, each in 0..0.95."""
        return np.array(self._core.weights(), np.float64)

    @property
    def weight(self) -> float:
        """The largest of the weights; 0 for order 1."""
        return max(self._core.weights(), default=0.0)

    @property
    def order(self) -> int:
        """n: histories have up to n - 1 tokens."""
        return self._core.order

    @property
    def vocab_size(self) -> int:
        """V, the number of token ids."""
        return self._core.vocab_size

    @property
    def max_tokens(self) -> int:
        """The maximum number of tokens in the cache."""
        return self._core.max_tokens

    def __len__(self) -> int:
        """The number of tokens in the cache."""
        return self._core.num_tokens()

    def __bool__(self) -> bool:
        """True, even if it is empty."""
        return True

    def __repr__(self) -> str:
        """Order, vocabulary, tokens and weights."""
        weights = ", ".join(f"{weight:.3f}" for weight in self.weights)
        return (
            f"ContextNGram(order {self.order}, vocabulary {self.vocab_size:,}, "
            f"{len(self):,} tokens, weights {weights or 'none'})"
        )

    def _ids(self, token_ids: Any, where: str) -> npt.NDArray[np.int32]:
        return to_token_ids(token_ids, f"ContextNGram.{where}", self.vocab_size)


def _restored(
    vocab_size: int, order: int, max_tokens: int, text: Any, weights: list[float]
) -> ContextNGram:
    """Restores a pickled ContextNGram."""
    cache = ContextNGram(vocab_size, order, max_tokens=max_tokens)
    cache._core.restore(text, weights)
    return cache


def _integer(name: str, value: int) -> int:
    """An int for the core, which checks its range."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"ContextNGram: {name} is {value!r}; expected an integer") from None
    if abs(number) >= 2**31:
        raise ValueError(f"ContextNGram: {name} is {number}; expected a number below 2**31")
    return number


def _core_lm(where: str, lm: NGramLM | None) -> _core.BackoffLm | None:
    return None if lm is None else core_of(f"ContextNGram.{where}", lm)
