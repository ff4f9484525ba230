"""Mixtures of sources in the core, and stores of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.draft.gates import Gates
from lattice_bpd.lm.ngram import NGramLM

NUM_PREDICTIONS = 8  # of the target, after each token that it reads
LEARNING_RATE = 0.1  # of the gates, for each decoded token


def make_mixture(
    vocab_size: int,
    lms: Sequence[NGramLM],
    *,
    heads: bool,
    text: bool,
    store: _core.TextStore | None,
    target: bool = False,
    gates: Gates,
) -> _core.Mixture:
    """The core's mixture of these sources; see `MixtureDrafter`.

    Raises:
        ValueError: no source, more than 4 LMs, or gates of other sources.
    """
    names = source_names(len(lms), heads=heads, text=text, store=store is not None, target=target)
    gates.check(names)
    return _core.Mixture(
        vocab_size, heads, [lm._core for lm in lms], text, store, target, LEARNING_RATE,
        gates.weights,
    )  # fmt: skip


def source_names(
    num_lms: int, *, heads: bool, text: bool, store: bool, target: bool = False
) -> tuple[str, ...]:
    """The sources of a mixture by name, in the order of its gates."""
    names = ["heads"] * heads + ["lm"] * num_lms + ["text"] * text + ["store"] * store
    return (*names, *["target"] * target)


def split_texts(token_ids: npt.NDArray[np.int32]) -> list[npt.NDArray[np.int32]]:
    """The texts of a `TextStore`, without empty ones.

    Args:
        token_ids: (T,) int32, of `tokens()`; -1 ends a text.
    """
    texts = (one[one >= 0] for one in np.split(token_ids, np.flatnonzero(token_ids < 0)))
    return [text for text in texts if text.size]


class TextStore:
    """N-grams of texts served before, for all sequences of a process: a cache LM across texts.

    Threads may share it. Pass one to several MixtureDrafters.

    Args:
        max_tokens: tokens to keep, about 0.5 kB each; older ones are dropped.

    Raises:
        ValueError: max_tokens below 7.
    """

    def __init__(self, max_tokens: int = 200_000) -> None:
        self._core = _core.TextStore(max_tokens)

    @property
    def token_ids(self) -> npt.NDArray[np.int32]:
        """(T,) int32, the kept tokens; -1 ends a text."""
        return self._core.tokens()

    def add(self, token_ids: Sequence[int] | npt.NDArray[Any]) -> None:
        """Add a text.

        Args:
            token_ids: (T,) ints.

        Raises:
            ValueError: a negative id.
        """
        self._core.add(np.ascontiguousarray(token_ids, np.int32))
