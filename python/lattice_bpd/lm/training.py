"""Texts of token ids: n-gram counts, warnings, scores of an LM.

The C++ core gets a corpus as one flat array and an offsets array, and counts it by sorting.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lattice_bpd.arguments import check_int
from lattice_bpd.token_ids import (
    Int32Array,
    Int64Array,
    concatenate,
    to_token_ids,
)
from lattice_bpd.vocabulary import StrPath

MAX_ID = 2**31 - 1
"""Largest token id or size of the core."""


def native_path(path: StrPath) -> str:
    """The path as a string for the core, where a NUL character would truncate it."""
    native = os.fspath(path)
    if "\0" in native:
        raise ValueError(f"the path {native!r} has a NUL character in it; expected none")
    return native


def optional_id(name: str, value: int | None) -> int | None:
    """A token id or size as an int for the core; None for None.

    Raises:
        TypeError: Not an integer.
        ValueError: Negative, or above MAX_ID.
    """
    return None if value is None else check_int(name, value, 0, MAX_ID)


class SmoothingWarning(UserWarning):
    """The corpus violates an assumption of the smoothing; the text has order and counts."""


class KatzWarning(SmoothingWarning):
    """A SmoothingWarning of Katz smoothing."""


class RaggedIds(NamedTuple):
    """A flat corpus: sequence i is token_ids[offsets[i]:offsets[i + 1]].

    Attributes:
        token_ids: (N,) int32.
        offsets: (number of sequences + 1,) int64, from 0 to N, nondecreasing.
    """

    token_ids: Int32Array
    offsets: Int64Array


def warn_of_counts(texts: Iterable[str], smoothing: str, stacklevel: int = 3) -> None:
    """Emits warnings about a corpus; by default they name the caller's caller."""
    category = KatzWarning if smoothing == "katz" else SmoothingWarning
    for text in texts:
        warnings.warn(text, category, stacklevel=stacklevel)


def flatten_sequences(
    where: str, sequences: Iterable[Any] | RaggedIds, vocab_size: int
) -> RaggedIds:
    """Lays all sequences out in one (N,) int32 array with (sequences + 1,) int64 offsets.

    Args:
        where: The caller's name, for error messages.
        sequences: (T_i,) integers each.
        vocab_size: V; ids in int32 arrays are left to the core, which checks them in one pass.

    Raises:
        TypeError: A sequence has elements that are not integers.
        ValueError: A sequence is not 1-D, or a token id lies outside 0..vocab_size-1.
    """
    check_int(f"{where}: vocab_size", vocab_size, 0, MAX_ID)
    limit = vocab_size if vocab_size > 0 else None  # the core reports a vocab_size of 0

    def convert(values: Any, name: str) -> Int32Array:
        if type(values) is np.ndarray and values.dtype == np.int32 and values.ndim == 1:
            return np.ascontiguousarray(values)
        return to_token_ids(values, f"{where}: {name}", limit)

    if isinstance(sequences, RaggedIds):
        offsets = np.ascontiguousarray(sequences.offsets, dtype=np.int64)
        return RaggedIds(convert(sequences.token_ids, "token_ids"), offsets)
    arrays = [convert(ids, f"sequence {i}") for i, ids in enumerate(sequences)]
    return RaggedIds(*concatenate(arrays))


def checked_min_counts(min_counts: Sequence[int] | None) -> list[int]:
    """min_counts as the core expects them: empty for None.

    Raises:
        ValueError: An entry below 1, or no entry.
    """
    counts = [int(count) for count in min_counts] if min_counts is not None else []
    if min_counts is not None and (not counts or min(counts) < 1):
        raise ValueError(f"min_counts is {counts}; expected an entry of at least 1 for each order")
    return counts


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
