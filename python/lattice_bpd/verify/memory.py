"""A verifying call that does not fit into memory."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import torch


def is_lack_of_memory(error: Exception) -> bool:
    """Whether an allocation failed; torch says it in several ways."""
    known = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(
        text in str(error) for text in known
    )


def try_once(
    known: MutableMapping[Any, str | None], key: Any, probe: Callable[[], str | None]
) -> str | None:
    """What a probe of a target says, kept for the next time; None where it had no memory.

    Args:
        known: what was found out before.
        key: of this probe.
        probe: why the target is refused, or None; raises where memory lacks.
    """
    if key not in known:
        try:
            known[key] = probe()
        except (RuntimeError, MemoryError) as error:
            if not is_lack_of_memory(error):
                raise
            return None  # the first call of decoding reports it
    return known[key]


def memory_advice(error: Exception, shape: Sequence[int], num_sequences: int, form: str) -> str:
    """What did not fit, and what to lower."""
    rows, size = shape
    cure = "num_drafts (or use form='tree')" if form == "rows" else "max_nodes or num_drafts"
    return (
        f"verify: no memory for a call of {rows} rows x {size} tokens over {num_sequences} "
        f"sequences ({str(error).strip().splitlines()[:1]}); lower {cure}, or decode fewer "
        "sequences at once"
    )
