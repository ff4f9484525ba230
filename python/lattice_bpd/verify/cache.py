"""KV caches of `transformers` that a model's first call fills, and whether they can be rolled back.

`lattice_bpd.verify.rows` has the cache of targets whose layers are attention,
`lattice_bpd.verify.recurrent_cache` that of targets whose layers keep states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import Cache, DynamicCache, cache_utils
from transformers.cache_utils import (
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

# Layers whose cache positions can be dropped, copied and selected. `_STATES` keep a recurrent or
# convolution state, which RecurrentCache restores.
_CROPPED = (DynamicLayer, DynamicIndexedLayer)
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


def fill_cache(
    cache: Cache, layers: Sequence[Sequence[Tensor]], length: int | None = None
) -> Cache:
    """Copy keys and values of each layer, the first positions of them, into an empty cache."""
    for number, parts in enumerate(layers):
        if parts:
            cache.update(parts[0][:, :, :length], parts[1][:, :, :length], number)
    return cache


def check_cache(cache: Cache) -> None:
    """Raise unless cache positions can be dropped.

    Args:
        cache: the target's cache after its first call.

    Raises:
        ValueError: a layer forgets (sliding window, recurrent state), so that rejected drafts
            could not be taken back.
    """
    layers: list[Any] = getattr(cache, "layers", [None])
    kept = [isinstance(layer, _CROPPED) or (layer and is_empty(layer)) for layer in layers]
    if any(getattr(cache, "is_sliding", [])) or not all(kept):
        raise ValueError(
            f"verify_drafts: the target's {type(cache).__name__} cannot be rolled back (a layer "
            "has a sliding window, a fixed size or a recurrent state); expected full attention in "
            "every layer; use CausalLMTarget(model).new_cache(), which keeps all tokens of a "
            "sliding window"
        )


def is_empty(layer: Any) -> bool:
    """Whether a layer holds nothing, as where the model's layer has no attention."""
    return getattr(layer, "keys", None) is None and getattr(layer, "device", None) is None
