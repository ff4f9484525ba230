"""The KV cache of drafters, a function of exact tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_SMALLEST = 64  # positions


class BlockCache:
    """Keys and values of all layers of several sequences, of different lengths.

    Positions from `lengths[b]` on hold nothing: a block is written there while it is read, and the
    next write replaces it. So nothing is rolled back after verification.

    Args:
        layers: of the drafter.
        batch: sequences.
        kv_heads: heads of keys and values.
        head_dim: width of a head.
        capacity: positions of each sequence, a block included; None: grows by doubling.
        dtype: of keys and values.
        device: of keys and values.

    Attributes:
        keys: (layers, B, kv_heads, capacity, head_dim) float, rotated by their positions.
        values: likewise.
        lengths: exact tokens of each sequence.
        is_static: the capacity is fixed, and layers see all of it, so that shapes do not change.
        newest: (B, D) float, the context vectors of the last exact tokens, 0 before the first one;
            None unless the drafter reads them.
    """

    def __init__(
        self,
        layers: int,
        batch: int,
        kv_heads: int,
        head_dim: int,
        *,
        capacity: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (layers, batch, kv_heads, capacity or _SMALLEST, head_dim)
        # Zeros: what a mask hides must be finite.
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.lengths = [0] * batch
        self.is_static = capacity is not None
        self.newest: Tensor | None = None

    @property
    def batch(self) -> int:
        """Sequences."""
        return len(self.lengths)

    @classmethod
    def of(
        cls, keys: Tensor, values: Tensor, lengths: Sequence[int], newest: Tensor | None = None
    ) -> BlockCache:
        """The cache of given keys and values, which it keeps and changes from `lengths` on.

        Args:
            keys: (layers, B, kv_heads, capacity, head_dim) float, finite everywhere.
            values: likewise.
            lengths: exact tokens of each sequence.
            newest: see the class.
        """
        cache = cls.__new__(cls)
        cache.keys, cache.values, cache.lengths = keys, values, list(lengths)
        cache.is_static, cache.newest = False, newest
        return cache

    @property
    def capacity(self) -> int:
        """Positions of a sequence that there is memory for."""
        return self.keys.shape[3]

    def reserve(self, needed: int) -> None:
        """Make the capacity `needed` positions or more.

        Raises:
            ValueError: the cache is static and smaller.
        """
        if needed <= self.capacity:
            return
        if self.is_static:
            raise ValueError(
                f"BlockCache: {needed} positions are needed, block included, and the capacity is "
                f"fixed at {self.capacity}; give new_cache a larger capacity, or none"
            )
        capacity = max(needed, 2 * self.capacity)
        self.keys, self.values = (_grow(part, capacity) for part in (self.keys, self.values))

    def append(self, keys: Tensor, values: Tensor, counts: Sequence[int]) -> None:
        """Add keys and values of exact tokens.

        Args:
            keys: (layers, B, kv_heads, m, head_dim) float, padded on the right.
            values: likewise.
            counts: valid positions of each sequence, 0..m.

        Raises:
            ValueError: a static cache that is full.
        """
        self.reserve(max(map(sum, zip(self.lengths, counts, strict=True)), default=0))
        lengths = torch.tensor(counts, device="cpu")[:, None]
        valid = torch.arange(keys.shape[3], device="cpu") < lengths
        rows, columns = valid.nonzero(as_tuple=True)
        positions = columns + torch.tensor(self.lengths, device="cpu")[rows]
        rows, columns, positions = (part.to(keys.device) for part in (rows, columns, positions))
        self.keys[:, rows, :, positions] = keys[:, rows, :, columns]
        self.values[:, rows, :, positions] = values[:, rows, :, columns]
        self.lengths = [old + new for old, new in zip(self.lengths, counts, strict=True)]

    def keep_newest(self, context: Tensor, counts: Sequence[int]) -> None:
        """Keep the last valid row of each sequence of context vectors (B, m, D), if any."""
        if self.newest is None:
            self.newest = context.new_zeros(context.shape[0], context.shape[2])
        rows = [row for row, count in enumerate(counts) if count]
        self.newest[rows] = context[rows, [counts[row] - 1 for row in rows]]

    def with_block(
        self, layer: int, keys: Tensor, values: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What a layer attends to: the sequences, and blocks after them that are not kept.

        Args:
            layer: from 0.
            keys: (B, kv_heads, K, head_dim) float of the blocks.
            values: likewise.
            positions: (B, K) int64, lengths[b] .. lengths[b] + K - 1; reserved.

        Returns:
            Views of keys and values, (B, kv_heads, S, head_dim), S as `visible_positions` says.
        """
        rows = torch.arange(self.batch, device=positions.device)[:, None]
        end = self.visible_positions(positions.shape[1])
        views = []
        for kept, block in ((self.keys[layer], keys), (self.values[layer], values)):
            kept[rows, :, positions] = block.transpose(1, 2)
            views.append(kept[:, :, :end])
        return views[0], views[1]

    def visible_positions(self, block_size: int) -> int:
        """S, up to the end of the longest block, or all of a static cache."""
        return self.capacity if self.is_static else max(self.lengths, default=0) + block_size

    def keep_sequences(self, rows: Sequence[int]) -> None:
        """Keep these sequences, in this order, and drop the others."""
        index = torch.tensor(list(rows), dtype=torch.int64, device=self.keys.device)
        self.keys, self.values = self.keys[:, index], self.values[:, index]
        self.lengths = [self.lengths[row] for row in rows]
        self.newest = None if self.newest is None else self.newest[index]

    @classmethod
    def join(cls, caches: Sequence[BlockCache]) -> BlockCache:
        """One cache of all sequences of several caches, in their order.

        Raises:
            ValueError: no cache, or caches of different drafters.
        """
        shapes = {(part.keys.shape[0], *part.keys.shape[2::2], part.keys.dtype) for part in caches}
        if len(shapes) != 1:
            raise ValueError(
                f"BlockCache.join: {len(caches)} caches of {len(shapes)} kinds (layers, heads, "
                "width, dtype); expected one or more of one drafter"
            )
        capacity = max(part.capacity for part in caches)
        joined = cls.of(
            torch.cat([_grow(part.keys, capacity) for part in caches], dim=1),
            torch.cat([_grow(part.values, capacity) for part in caches], dim=1),
            [length for part in caches for length in part.lengths],
            _join_newest(caches),
        )
        joined.is_static = all(part.is_static for part in caches)
        return joined


def _join_newest(caches: Sequence[BlockCache]) -> Tensor | None:
    """`newest` of all sequences; None if no cache has any."""
    known = next((cache.newest for cache in caches if cache.newest is not None), None)
    if known is None:
        return None
    return torch.cat([
        known.new_zeros(cache.batch, known.shape[1]) if cache.newest is None else cache.newest
        for cache in caches
    ])  # fmt: skip


def _grow(part: Tensor, capacity: int) -> Tensor:
    """Keys or values with zeros up to the capacity; the same tensor if it has that."""
    layers, batch, heads, old, width = part.shape
    if old == capacity:
        return part
    grown = part.new_zeros(layers, batch, heads, capacity, width)
    grown[:, :, :, :old] = part
    return grown
