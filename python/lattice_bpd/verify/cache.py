"""Building KV caches of `transformers` and rolling them back to accepted tokens.

Verification drops the last cache positions, copies a few positions, or selects sequences.
`StackedCache` does so for all layers at once, this module for caches of `transformers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache, DynamicCache, StaticCache
from transformers.cache_utils import (
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
    StaticLayer,
)

from lattice_bpd.verify.device_copies import pad_sources
from lattice_bpd.verify.stacked_cache import StackedCache, StackedLayer

# Layers whose cache positions can be dropped, copied and selected. `_STATES` keep a recurrent or
# convolution state, which RecurrentCache restores.
_CROPPED = (DynamicLayer, DynamicIndexedLayer, StaticLayer, StackedLayer)
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
        elif type(layer) not in (*_CROPPED, *_STATES):
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
        not isinstance(layer, _CROPPED) and not is_empty(layer) for layer in layers
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


def get_width(cache: Any) -> int:
    """Cache positions in use."""
    return cache.width if isinstance(cache, StackedCache) else int(cache.get_seq_length())


def set_width(cache: Any, width: int, now: int) -> None:
    """Drop all cache positions from `width` on; `now` are in use."""
    if isinstance(cache, StackedCache):
        cache.set_width(width)
    elif isinstance(cache, StaticCache):
        layers: list[Any] = cache.layers
        for layer in layers:
            layer.cumulative_length.fill_(width)
    elif width < now:
        # Negative = "remove so many": a positive length is refused since transformers 5.
        if not _partly_filled(cache):
            cache.crop(width - now)
            return
        for layer in cache.layers:
            if not is_empty(layer):
                layer.crop(width - now)


def move_positions(cache: Any, start: int, sources: Sequence[Sequence[int]]) -> None:
    """Copy cache positions of each sequence to `start`, `start`+1, ... in every layer.

    Sequences with fewer sources than others get undefined values after theirs.
    """
    if isinstance(cache, StackedCache):
        cache.move_positions(start, sources)
        return
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


def select_sequences(cache: Any, sequences: list[int]) -> None:
    """Keep the sequences of these indices; one may be kept several times."""
    if isinstance(cache, StackedCache):
        cache.select_sequences(sequences)
        return
    layers = getattr(cache, "layers", None) or []
    keys = [layer.keys for layer in layers if getattr(layer, "keys", None) is not None]
    index = torch.tensor(sequences, device=keys[0].device if keys else None)
    if not _partly_filled(cache):
        cache.batch_select_indices(index)
        return
    for layer in layers:
        if not is_empty(layer):
            layer.batch_select_indices(index.to(layer.keys.device))
