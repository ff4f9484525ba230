"""The attention windows of a target, read from its config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Windows(NamedTuple):
    """Attention windows, from a decoder's config.

    Attributes:
        sliding: tokens in the window of a sliding layer, the current one included; None without
            one. Masks can express it, so trees and padded batches work.
        mixed: whether other layers have full attention.
        by_cache_position: window or chunk of layers that count cache positions instead of
            tokens: padding, holes and siblings of a tree change what it contains; None without one.
        selected: tokens that a layer of sparse attention selects by score. Scores often tie, and a
            call of another shape then selects others; None without one.
    """

    sliding: int | None
    mixed: bool
    by_cache_position: int | None
    selected: int | None = None


def find_windows(config: Any) -> Windows:
    """The windows that a decoder's config names."""
    kinds: Sequence[str] = getattr(config, "layer_types", None) or ()
    by_cache_position = None
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk is not None and (not kinds or "chunked_attention" in kinds):
        by_cache_position = int(chunk)
    if "local" in (getattr(config, "attention_layers", None) or ()):  # GPT-Neo
        by_cache_position = int(config.window_size)
    selected = getattr(config, "keep_window_size", None)  # Doge
    if "indexed_attention" in kinds:
        names = ("index_topk", "indexer_budget")  # DeepSeek-V3.2 and relatives, Qwen4-exp
        selected = next((int(vars(config)[name]) for name in names if name in vars(config)), 0)
    window = getattr(config, "sliding_window", None)
    if window is None or (kinds and not any("sliding" in kind for kind in kinds)):
        return Windows(None, False, by_cache_position, selected)
    mixed = any("sliding" not in kind for kind in kinds)
    return Windows(int(window), mixed, by_cache_position, selected)
