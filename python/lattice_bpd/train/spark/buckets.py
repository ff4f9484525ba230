"""Which bucket an n-gram goes to: with those that share its context's end, or its beginning."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lattice_bpd.token_ids import Int64Array
from lattice_bpd.train.spark.shuffle import Column, SymbolArray

_LARGEST_BUCKET = 1 << 22  # rows; some 600 MB while one is worked on


@dataclass(frozen=True)
class ContextBuckets:
    """Buckets by the last symbol of the context: what discounts and backoff weights look at.

    A context h = g c and its suffix h' both end in c, so all that their sums need is in c's
    bucket. A symbol with too many n-grams has several: those of order 3 and above are cut by the
    symbol before c, which h and h' share too, and bigrams c w go to all of them.

    Attributes:
        first: (S,) int64: each symbol's first bucket.
        count: (S,) int64: how many it has.
        num_buckets: of all.
    """

    first: Int64Array
    count: Int64Array
    num_buckets: int

    def assign(self, symbols: SymbolArray) -> tuple[Column, Column]:
        """See shuffle.Assign."""
        last = symbols[:, -2].astype(np.int64)
        first, count = self.first[last], self.count[last]
        if symbols.shape[1] == 2:
            rows = np.repeat(np.arange(len(symbols)), count)
            nth = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
            return rows, first[rows] + nth
        return np.arange(len(symbols)), first + _mix(symbols[:, -3]) % count

    def is_first(self, number: int, last: Column) -> Column:
        """Which contexts of one symbol have their first bucket here: copies are left out."""
        return np.asarray(self.first[last.astype(np.int64)] == number)


def make_context_buckets(num_after: Int64Array, num_buckets: int) -> ContextBuckets:
    """Buckets of about the same size.

    Args:
        num_after: (S,): n-grams whose last but one symbol it is.
        num_buckets: how many to aim at; more where they would be too large.
    """
    total = int(num_after.sum())
    size = max(1, min(-(-total // num_buckets), _LARGEST_BUCKET))
    before = np.cumsum(num_after) - num_after
    first = before // size
    # A symbol that fills less than a bucket may begin one that its rows end in: fine.
    count = np.maximum(1, -(-num_after // size))
    return ContextBuckets(first, count, int((first + count).max()))


@dataclass(frozen=True)
class PairBuckets:
    """Buckets by the first two symbols: an n-gram with its prefixes of order 2 and above."""

    num_buckets: int

    def assign(self, symbols: SymbolArray) -> tuple[Column, Column]:
        """See shuffle.Assign."""
        pairs = _mix(symbols[:, 0]) ^ _mix(symbols[:, 1] + np.uint32(1)) * 7
        return np.arange(len(symbols)), pairs % self.num_buckets


def _mix(symbols: SymbolArray) -> Int64Array:
    """Numbers of 31 bits that look random."""
    mixed = symbols.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(33)).astype(np.int64)
