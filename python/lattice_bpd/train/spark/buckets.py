"""Assignment of n-grams to buckets, by the end of the context or the first symbols."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lattice_bpd.token_ids import Int64Array
from lattice_bpd.train.spark.shuffle import Column, SymbolArray

_LARGEST_BUCKET = 1 << 22  # rows; takes about 600 MB while it is processed


@dataclass(frozen=True)
class ContextBuckets:
    """Buckets by the last symbol of the context, for discounts and backoff weights.

    A context h = g c and its suffix h' both end in c, so the bucket of c has everything that their
    sums need. A symbol with too many n-grams has several buckets: n-grams of order 3 and above are
    split by the symbol before c, which h and h' share too, and bigrams c w go to all of them.

    Attributes:
        first: (S,) int64: first bucket of each symbol.
        count: (S,) int64: number of buckets of each symbol.
        num_buckets: number of all buckets.
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
        """Which one-symbol contexts have their first bucket here (the others are copies)."""
        return np.asarray(self.first[last.astype(np.int64)] == number)


def make_context_buckets(num_after: Int64Array, num_buckets: int) -> ContextBuckets:
    """Buckets of about the same size.

    Args:
        num_after: (S,): number of n-grams whose second-to-last symbol it is.
        num_buckets: desired number; exceeded if buckets would be too large.
    """
    total = int(num_after.sum())
    size = max(1, min(-(-total // num_buckets), _LARGEST_BUCKET))
    first = (np.cumsum(num_after) - num_after) // size
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
    """31-bit hashes."""
    mixed = symbols.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(33)).astype(np.int64)
