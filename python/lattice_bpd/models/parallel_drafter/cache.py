"""The KV cache of a ParallelDrafter, with tokens that the drafter has not read yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from lattice_bpd.models.block_drafter.cache import BlockCache


class Unread(NamedTuple):
    """Exact tokens of a sequence that are not in its KV cache yet.

    Attributes:
        token_ids: (m,) int64.
        features: (m, n*D_target) float, the target's features at these tokens.
    """

    token_ids: Tensor
    features: Tensor


class ParallelCache(BlockCache):
    """A BlockCache whose drafter reads new tokens and masks in one forward.

    Attributes:
        unread: of each sequence, the tokens after its `lengths`.
    """

    unread: list[Unread | None]

    def __init__(self, layers: int, batch: int, kv_heads: int, head_dim: int, **options: Any):
        super().__init__(layers, batch, kv_heads, head_dim, **options)
        self.unread = [None] * batch

    def add_unread(self, token_ids: Tensor, features: Tensor, lengths: Sequence[int]) -> None:
        """Add tokens (B, m) and features (B, m, n*D_target), padded on the right."""
        added = [
            Unread(row[:length], vectors[:length])
            for row, vectors, length in zip(token_ids, features, lengths, strict=True)
        ]
        self.unread = [
            new if old is None else Unread(*map(torch.cat, zip(old, new, strict=True)))
            for old, new in zip(self.unread, added, strict=True)
        ]

    def mark_read(self) -> None:
        """Count the unread tokens as tokens of the cache, which has their keys and values now."""
        self.lengths = [
            length + (0 if part is None else len(part.token_ids))
            for length, part in zip(self.lengths, self.unread, strict=True)
        ]
        self.unread = [None] * self.batch

    def keep_sequences(self, rows: Sequence[int]) -> None:
        """Keep these sequences, in this order, and drop the others."""
        super().keep_sequences(rows)
        self.unread = [self.unread[row] for row in rows]

    @classmethod
    def join(cls, caches: Sequence[BlockCache]) -> ParallelCache:
        """One cache of all sequences of several caches, in their order.

        Raises:
            ValueError: no cache, or caches of different drafters.
        """
        joined = cast(ParallelCache, super().join(caches))
        parts = cast("Sequence[ParallelCache]", caches)
        joined.unread = [part for cache in parts for part in cache.unread]
        return joined


class LayerCache:
    """A ParallelCache as the cache of layers of `transformers`, for one forward.

    Args:
        cache: of the sequences.
        positions: (B, m) int64, of the tokens that are read: those after `cache.lengths`.
    """

    def __init__(self, cache: ParallelCache, positions: Tensor) -> None:
        self._cache, self._positions = cache, positions

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *_options: Any, **_named: Any
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values (B, kv_heads, m, head_dim); return all that the layer sees."""
        return self._cache.with_block(layer, keys, values, self._positions)
