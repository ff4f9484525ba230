"""Rolling a KV cache of `transformers` back to the accepted tokens.

What verification asks of any cache: keep the first so many slots, copy a few slots to another
place, keep some sequences. `StackedCache` does it for all layers at once; here the same for the
caches of `transformers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache, StaticCache

from lattice_bpd.verify.device_slots import pad_slots
from lattice_bpd.verify.stacked_cache import StackedCache


def check_cache(cache: Cache) -> None:
    """Raise unless the cache can be rolled back.

    Args:
        cache: the target's cache after its first call.

    Raises:
        ValueError: a layer forgets (sliding window, recurrent state), so that rejected drafts
            could not be taken back.
    """
    forgets = any(getattr(cache, "is_sliding", []))
    croppable = getattr(cache, "is_croppable", True) or isinstance(cache, StaticCache)
    if forgets or not croppable:
        raise ValueError(
            f"verify_drafts: the target's {type(cache).__name__} cannot be rolled back (a layer "
            "has a sliding window or a recurrent state); expected full attention in every layer; "
            "use DynamicCache() without a config, which keeps all of a sliding window's past, or "
            "another target"
        )


def get_width(cache: Any) -> int:
    """Slots in use."""
    return cache.width if isinstance(cache, StackedCache) else int(cache.get_seq_length())


def set_width(cache: Any, width: int, now: int) -> None:
    """Forget all slots from `width` on; `now` are in use."""
    if isinstance(cache, StackedCache):
        cache.set_width(width)
    elif isinstance(cache, StaticCache):
        layers: list[Any] = cache.layers
        for layer in layers:
            layer.cumulative_length.fill_(width)
    elif width < now:
        # Negative = "remove so many": a positive length is refused since transformers 5.
        cache.crop(width - now)


def move_slots(cache: Any, start: int, sources: Sequence[Sequence[int]]) -> None:
    """Copy slots of each sequence to `start`, `start`+1, ... in every layer.

    What stands behind those of a sequence with fewer slots than others is anybody's afterwards.
    """
    if isinstance(cache, StackedCache):
        cache.move_slots(start, sources)
        return
    index = pad_slots(sources)
    end = start + index.shape[1]
    for layer in cache.layers:
        for states in (layer.keys, layer.values):
            batch, heads, _, size = states.shape
            places = index.to(states.device).view(batch, 1, -1, 1)
            moved = states.gather(2, places.expand(batch, heads, -1, size))
            states[:, :, start:end] = moved


def select_sequences(cache: Any, sequences: list[int]) -> None:
    """Keep the sequences of these numbers; one may come several times."""
    if isinstance(cache, StackedCache):
        cache.select_sequences(sequences)
        return
    layers = getattr(cache, "layers", None)
    keys = getattr(layers[0], "keys", None) if layers else None
    device = None if keys is None else keys.device
    cache.batch_select_indices(torch.tensor(sequences, device=device))
