"""Reads texts into the rows of a cache, several in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lattice_bpd.models.forward import LMOutput
from lattice_bpd.verify.rows import Rows


def read_texts(
    target: Any,
    texts: Sequence[Sequence[int]],
    rows: Rows | None = None,
    *,
    first: int = 0,
    start: int = 0,
    num_free: int = 0,
) -> tuple[LMOutput, Rows]:
    """Read texts in one call.

    Padding follows shorter texts, whose tokens do not see it; what comes next is written over it.

    Args:
        target: a CausalLMTarget.
        texts: B of them, one token or more each, without the `start` tokens that rows hold.
        rows: of texts read before; None: a new cache, for all of the texts.
        first: row of the first text; those from it on become these texts.
        start: known tokens of each.
        num_free: positions of a new cache that can be appended without a copy.

    Returns:
        Output of the last token of each text, logits (B, 1, V) and hidden (B, 1, D), with features
        (B, T, F) of all tokens and the padding; and the rows.

    Raises:
        ValueError, MemoryError: see `CausalLMTarget.read_prompts`.
    """
    longest = max(map(len, texts))
    padded = [[*text, *[0] * (longest - len(text))] for text in texts]
    ids = torch.tensor(padded, device=target.device)
    part = None if rows is None else rows.part(first, len(texts), start)
    output, cache = target.read_prompts(ids, part, ends=[len(text) - 1 for text in texts])
    if rows is None:
        rows = Rows.from_cache(cache, num_free=num_free)
    rows.set_texts([*rows.lengths[:first], *(start + len(text) for text in texts)])
    return output, rows
