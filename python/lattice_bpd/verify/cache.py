"""KV caches of `transformers`: building them, rolling them back, and rows of one text repeated.

`lattice_bpd.verify.batch_cache` has the cache of targets whose layers are attention,
`lattice_bpd.verify.recurrent_cache` that of targets whose layers keep states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, StaticCache, cache_utils
from transformers.cache_utils import (
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
    StaticLayer,
)

if TYPE_CHECKING:
    from lattice_bpd.verify.batch_cache import StackedCache

# Layers whose cache positions can be dropped, copied and selected. `_STATES` keep a recurrent or
# convolution state, which RecurrentCache restores.
_CROPPED = (DynamicLayer, DynamicIndexedLayer, StaticLayer)
# Holds nothing, in place of layers without attention and of those that read another layer's keys.
EMPTY: Any = getattr(cache_utils, "DummyLayer", DynamicLayer)  # 5.20 has none
_STATES = (LinearAttentionLayer, LinearAttentionAndFullAttentionLayer)


def build_cache(base: Any) -> Cache:
    """An empty cache for a model, with the kinds of layers that its config names.

    Sliding-window layers keep everything instead of their window, so that rejected drafts can be
    dropped; the window is then applied by the mask.

    Raises:
        ValueError: the model does not keep its state in caches of `transformers`, or has layers
            whose cache cannot be rolled back.
    """
    name = type(base).__name__
    supports = getattr(base, "_supports_default_dynamic_cache", None)
    if supports is not None and not supports():
        raise ValueError(
            f"decode: {name} keeps its state in a form of its own instead of a cache of "
            "transformers, so rejected drafts cannot be taken back; use the model's own generate, "
            "or another target"
        )
    try:
        cache = DynamicCache(config=base.config)
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"decode: transformers builds no cache from the config of {name} ({error!r}); use the "
            "model's own generate, or another target"
        ) from error
    layers: list[Any] = cache.layers
    for number, layer in enumerate(layers):
        if type(layer) is DynamicSlidingWindowLayer:
            layers[number] = DynamicLayer()  # type: ignore[no-untyped-call]
        elif type(layer) is LinearAttentionAndSlidingWindowAttentionLayer:
            layers[number] = LinearAttentionAndFullAttentionLayer(layer.number_of_states)
        elif type(layer) not in (*_CROPPED, *_STATES, EMPTY):
            raise ValueError(
                f"decode: layer {number} of {name} has a {type(layer).__name__}, which cannot be "
                "rolled back to the accepted tokens; use the model's own generate, or another "
                "target"
            )
    return cache


def check_cache(cache: Cache) -> None:
    """Raise unless cache positions can be dropped.

    Args:
        cache: the target's cache after its first call.

    Raises:
        ValueError: a layer forgets (sliding window, recurrent state), so that rejected drafts
            could not be taken back.
    """
    layers: list[Any] = (
        cache.layers if isinstance(cache, Cache) else []
    )  # else a class of the caller
    forgets = any(getattr(cache, "is_sliding", [])) or any(
        not isinstance(layer, _CROPPED) and not hasattr(layer, "stack") and not is_empty(layer)
        for layer in layers
    )
    if forgets or not (layers or getattr(cache, "is_croppable", True)):
        raise ValueError(
            f"verify_drafts: the target's {type(cache).__name__} cannot be rolled back (a layer "
            "has a sliding window or a recurrent state); expected full attention in every layer; "
            "use CausalLMTarget(model).new_cache(), which keeps all tokens of a sliding "
            "window"
        )


def is_empty(layer: Any) -> bool:
    """Whether a layer holds nothing, as where the model's layer has no attention."""
    return getattr(layer, "keys", None) is None and getattr(layer, "device", None) is None


def _partly_filled(cache: Any) -> bool:
    """Whether some layers are empty, so that layers must be treated one by one."""
    return isinstance(cache, Cache) and any(is_empty(layer) for layer in cache.layers)


def stack_layers(cache: Any, num_free: int) -> tuple[Tensor, Tensor, int] | None:
    """Buffers of the keys and values of all layers, and their width; see `StackedCache.from_cache`.

    None if the layers differ in shape, or are not those of a `DynamicCache`.
    """
    layers: list[Any] = cache.layers
    if type(cache) is not DynamicCache or any(
        type(layer) is not DynamicLayer or layer.keys is None or layer.values is None
        for layer in layers
    ):
        return None
    parts = [(layer.keys, layer.values) for layer in layers]
    shapes = {(keys.shape, values.shape) for keys, values in parts}
    kinds = {(part.dtype, part.device) for pair in parts for part in pair}
    if len(shapes) != 1 or len(kinds) != 1:
        return None
    width = int(parts[0][0].shape[2])
    buffers = []
    for of_layers in zip(*parts, strict=True):
        batch, heads, _, size = of_layers[0].shape
        buffer = of_layers[0].new_empty((len(layers), batch, heads, width + num_free, size))
        for number, part in enumerate(of_layers):
            buffer[number, :, :, :width] = part
        buffers.append(buffer)
    return buffers[0], buffers[1], width


def crop_layers(cache: Any, width: int, now: int) -> None:
    """Drop all cache positions from `width` on; `now` are in use."""
    if isinstance(cache, StaticCache):
        layers: list[Any] = cache.layers
        for layer in layers:
            if not is_empty(layer):
                layer.cumulative_length.fill_(width)
    elif width < now:
        # Negative = "remove so many": a positive length is refused since transformers 5.
        if not _partly_filled(cache):
            cache.crop(width - now)
            return
        for layer in cache.layers:
            if not is_empty(layer):
                layer.crop(width - now)


def move_in_layers(cache: Any, start: int, sources: Sequence[Sequence[int]]) -> None:
    """Copy cache positions of each sequence to `start`, `start`+1, ... in every layer.

    Sequences with fewer sources than others get undefined values after theirs.
    """
    index = pad_sources(sources)
    end = start + index.shape[1]
    for layer in cache.layers:
        for states in (layer.keys, layer.values):
            if states is None:  # a layer without attention
                continue
            batch, heads, _, size = states.shape
            rows = index.to(states.device).view(batch, 1, -1, 1)
            states[:, :, start:end] = states.gather(2, rows.expand(batch, heads, -1, size))
        indexed = getattr(layer, "indexer_keys", None)
        if indexed is not None:  # (B, positions, D)
            rows = index.to(indexed.device).unsqueeze(-1).expand(-1, -1, indexed.shape[-1])
            indexed[:, start:end] = indexed.gather(1, rows)


def select_in_layers(cache: Any, sequences: list[int]) -> None:
    """Keep the sequences of these indices; one may be kept several times."""
    layers = getattr(cache, "layers", None) or []
    keys = [layer.keys for layer in layers if getattr(layer, "keys", None) is not None]
    index = torch.tensor(sequences, device=keys[0].device if keys else None)
    if not _partly_filled(cache):
        cache.batch_select_indices(index)
        return
    for layer in layers:
        if not is_empty(layer):
            layer.batch_select_indices(index.to(layer.keys.device))


def move_on_device(buffer: Tensor, start: int, sources: Sequence[Sequence[int]]) -> None:
    """Copy cache positions of each of B sequences to `start`, `start`+1, .. in every layer.

    Sequences with fewer sources than others get undefined values after theirs.
    """
    index = pad_sources(sources).to(buffer.device)
    layers, batch, heads, _, size = buffer.shape
    index = index.view(1, batch, 1, -1, 1).expand(layers, batch, heads, -1, size)
    buffer.narrow(3, start, index.shape[3]).copy_(buffer.gather(3, index))


def copy_on_device(
    source: Tensor, rows: Sequence[int], buffer: Tensor, first_row: int, start: int, count: int
) -> None:
    """Copy positions `start` .. of rows of one buffer to rows `first_row` .. of another."""
    index = torch.tensor(rows, device=buffer.device)
    new = source.narrow(3, start, count).index_select(1, index)
    buffer.narrow(1, first_row, len(rows)).narrow(3, start, count).copy_(new)


def pad_sources(sources: Sequence[Sequence[int]]) -> Tensor:
    """(B, A) int64; shorter rows are padded with their first entry, or with 0."""
    longest = max(map(len, sources))
    return torch.tensor(
        [[*row, *[row[0] if row else 0] * (longest - len(row))] for row in sources], device="cpu"
    )


_SPARE = 64  # positions beyond those of a call, so that buffers last for several calls


class RepeatedRows:
    """Buffers for batched verification.

    Positions that a row shares with its sequence are copied once: a call copies only those that
    were appended to the cache since the previous call.
    """

    def __init__(self) -> None:
        self._buffers: StackedCache | None = None  # of all rows
        self._rows: StackedCache | None = None  # of the last call
        self._sequences: list[int] = []  # of each row that was filled
        self._num_shared = 0  # positions that those rows share with their sequences

    def repeat(self, cache: StackedCache, sequences: list[int], num_free: int) -> StackedCache:
        """A cache of R rows over this object's buffers, valid for one call.

        Args:
            cache: of B sequences.
            sequences: the sequence that each of R rows repeats.
            num_free: positions that the call writes.
        """
        rows, filled = len(sequences), self._sequences
        buffers = self._reserve(cache, rows, cache.width + num_free)
        if buffers is self._buffers and sequences[: len(filled)] == filled[:rows]:
            _fill(buffers, cache, filled, 0, self._num_shared)
            sequences = [*sequences, *filled[rows:]]
            _fill(buffers, cache, sequences, len(filled), 0)
        else:
            _fill(buffers, cache, sequences, 0, 0)
            self._rows = None
        if self._rows is None or self._rows.keys.shape[1] != rows:
            keys, values = (part.narrow(1, 0, rows) for part in (buffers.keys, buffers.values))
            self._rows = cache.over(keys, values, sequences[:rows])
        self._rows.set_width(cache.width)
        self._buffers, self._sequences, self._num_shared = buffers, sequences, cache.width
        return self._rows

    def append_to(self, cache: StackedCache, rows: list[int], count: int) -> None:
        """Append to each sequence of the cache the first positions that the last call wrote.

        Args:
            cache: the cache that was repeated.
            rows: the row of each sequence.
            count: positions to append.
        """
        assert self._buffers is not None
        cache.append_rows(self._buffers, rows, count)

    def keep_positions(self, width: int) -> None:
        """Note that the sequences may change from cache position `width` on."""
        self._num_shared = min(self._num_shared, width)

    def forget(self) -> None:
        """Note that all sequences change: the next call copies them whole."""
        self._buffers, self._rows, self._sequences, self._num_shared = None, None, [], 0

    def _reserve(self, cache: StackedCache, rows: int, width: int) -> StackedCache:
        """The buffers, or new ones if they are too small."""
        if self._buffers is not None:
            _, max_rows, _, capacity, _ = self._buffers.keys.shape
            if rows <= max_rows and width <= capacity:
                return self._buffers
            rows = max(rows, max_rows)
        self.forget()  # frees the old buffers before new ones are allocated
        return cache.empty(rows, width + _SPARE)


def _fill(
    buffers: StackedCache, cache: StackedCache, sequences: list[int], row: int, start: int
) -> None:
    """Copy the cache's positions from `start` on to the rows from `row` on."""
    if start < cache.width and row < len(sequences):
        buffers.copy_positions(cache, sequences[row:], row, start, cache.width - start)
