"""Hooks of modules that other threads may be calling too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def in_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that runs in calls of the thread that made it; others' calls stay as they are.

    A server may decode with one model in several threads, and hooks belong to the model.

    Args:
        hook: a hook of `torch.nn.Module`, before or after `forward`.
    """
    owner = threading.get_ident()

    def of_owner(*arguments: Any) -> Any:
        return hook(*arguments) if threading.get_ident() == owner else None

    return as_own(of_owner)


def as_own(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a hook or a `forward` of this library, which is there during a call only."""
    function._lattice_bpd = True  # type: ignore[attr-defined]
    return function


def is_own(function: Any) -> bool:
    """Whether `as_own` marked a function."""
    return getattr(function, "_lattice_bpd", False) is True
