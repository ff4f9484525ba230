"""Rolling a KV cache of `transformers` back to the accepted tokens."""

from __future__ import annotations

import torch
from transformers import Cache


def check_cache(cache: Cache) -> None:
    """Raise unless the cache can be rolled back.

    Args:
        cache: the target's cache after its first call.

    Raises:
        ValueError: a layer forgets (sliding window, recurrent state), so that rejected drafts
            could not be taken back.
    """
    if not getattr(cache, "is_croppable", True) or any(getattr(cache, "is_sliding", [])):
        raise ValueError(
            f"verify_drafts: the target's {type(cache).__name__} cannot be rolled back (a layer "
            "has a sliding window or a recurrent state); expected full attention in every layer; "
            "use strategy='greedy' or another target"
        )


def keep_row(cache: Cache, row: int, num_rows: int, num_rejected: int) -> None:
    """Keep one row of a cache and drop its last positions, in place.

    Args:
        cache: covers num_rows sequences.
        row: the row to keep.
        num_rows: rows of the cache; with one, nothing is copied.
        num_rejected: positions to forget at the end.
    """
    if num_rows > 1:
        index = torch.tensor([row], device=_cache_device(cache))
        cache.batch_select_indices(index)
    if num_rejected > 0:
        # Negative = "remove so many": a positive length is refused since transformers 5.
        cache.crop(-num_rejected)


def _cache_device(cache: Cache) -> torch.device | None:
    """Device of the first layer's keys; layers elsewhere take an index from any device."""
    layers = getattr(cache, "layers", None)
    keys = getattr(layers[0], "keys", None) if layers else None
    return None if keys is None else keys.device
