"""Validation of paths and token ids."""

from __future__ import annotations

import os

from lattice_bpd.arguments import check_int
from lattice_bpd.vocabulary import StrPath

MAX_ID = 2**31 - 1
"""Largest token id or size of the core."""


def native_path(path: StrPath) -> str:
    """The path as a string for the core, where a NUL character would truncate it."""
    native = os.fspath(path)
    if "\0" in native:
        raise ValueError(f"the path {native!r} has a NUL character in it; expected none")
    return native


def optional_id(name: str, value: int | None) -> int | None:
    """A token id or size as an int for the core; None for None.

    Raises:
        TypeError: Not an integer.
        ValueError: Negative, or above MAX_ID.
    """
    return None if value is None else check_int(name, value, 0, MAX_ID)
