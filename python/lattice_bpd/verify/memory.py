"""Recognition of out-of-memory errors, and advice on what to lower."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch


def is_lack_of_memory(error: Exception) -> bool:
    """Whether an allocation failed; torch reports it in several ways."""
    messages = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(
        text in str(error).lower() for text in messages
    )


@contextmanager
def describe_lack_of_memory(action: str, advice: str) -> Iterator[None]:
    """Turn an out-of-memory error into a MemoryError that says what failed and what to do.

    Args:
        action: what the memory was for, such as "read 3 prompts".
        advice: what to do.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_lack_of_memory(error) or str(error).startswith("decode:"):
            raise
        cause = str(error).strip().splitlines()[:1]
        raise MemoryError(f"decode: no memory to {action} ({cause}); {advice}") from error


def free_memory(device: torch.device) -> float:
    """Bytes that a GPU has free, in its allocator too; on another device no limit."""
    if device.type != "cuda":
        return math.inf
    free = torch.cuda.mem_get_info(device)[0]
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def try_once(
    results: MutableMapping[Any, str | None], key: Any, probe: Callable[[], str | None]
) -> str | None:
    """The result of a probe of a target, computed once; None if it ran out of memory.

    Args:
        results: of earlier probes; an out-of-memory error is not stored.
        key: of this probe.
        probe: returns why the target is refused, or None; may raise an out-of-memory error.
    """
    if key not in results:
        try:
            results[key] = probe()
        except (RuntimeError, MemoryError) as error:
            if not is_lack_of_memory(error):
                raise
            return None  # the first call of decoding reports it
    return results[key]


def refuse_call(
    error: Exception, shape: Sequence[int], num_sequences: int, layout: str
) -> NoReturn:
    """Raise the error of a verifying call; for lack of memory with its size and what to lower."""
    if not is_lack_of_memory(error):
        raise error
    advice = "num_drafts (or use layout='tree')" if layout == "rows" else "max_nodes or num_drafts"
    raise MemoryError(
        f"verify: no memory for a call of {shape[0]} rows x {shape[1]} tokens over {num_sequences} "
        f"sequences ({str(error).strip().splitlines()[:1]}); lower {advice}, or decode fewer "
        "sequences at once"
    ) from error
