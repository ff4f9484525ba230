"""Attention windows of a target, and who applies them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Windows(NamedTuple):
    """Attention windows, from a decoder's config.

    Attributes:
        sliding: how many tokens a sliding layer sees, itself among them; None without one. Masks
            can express it, so that trees and padded batches work.
        mixed: whether other layers see everything.
        by_slot: window or chunk of layers that count cache positions instead of tokens, so that
            padding, holes and siblings of a tree would change what they see; None without one.
        selected: how many tokens a layer of sparse attention selects by their scores, which often
            tie so that a call of another shape selects others; None without one.
    """

    sliding: int | None
    mixed: bool
    by_slot: int | None
    selected: int | None = None


def find_windows(config: Any) -> Windows:
    """The windows that a decoder's config names."""
    kinds: Sequence[str] = getattr(config, "layer_types", None) or ()
    by_slot = None
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk is not None and (not kinds or "chunked_attention" in kinds):
        by_slot = int(chunk)
    if "local" in (getattr(config, "attention_layers", None) or ()):  # GPT-Neo
        by_slot = int(config.window_size)
    selected = getattr(config, "keep_window_size", None)  # Doge
    if "indexed_attention" in kinds:
        names = ("index_topk", "indexer_budget")  # DeepSeek-V3.2 and relatives, Qwen4-exp
        selected = next((int(vars(config)[name]) for name in names if name in vars(config)), 0)
    window = getattr(config, "sliding_window", None)
    if window is None or (kinds and not any("sliding" in kind for kind in kinds)):
        return Windows(None, False, by_slot, selected)
    mixed = any("sliding" not in kind for kind in kinds)
    return Windows(int(window), mixed, by_slot, selected)
