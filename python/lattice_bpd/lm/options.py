"""Validation of paths and token ids."""

from __future__ import annotations

import operator
import os

from lattice_bpd.vocabulary import StrPath


def native_path(path: StrPath) -> str:
    """The path as a string for the core, where a NUL character would truncate it."""
    native = os.fspath(path)
    if "\0" in native:
        raise ValueError(f"the path {native!r} has a NUL character in it; expected none")
    return native


def optional_id(name: str, value: int | None) -> int | None:
    """As :func:`checked_id`; None for None.

    Raises:
        TypeError: Not an integer.
        ValueError: Negative, or 2**31 or above.
    """
    return None if value is None else checked_id(name, value)


def checked_id(name: str, value: int) -> int:
    """A token id or size as an int for the core.

    Raises:
        TypeError: Not an integer.
        ValueError: Negative, or 2**31 or above.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; expected an integer") from None
    if not 0 <= number < 2**31:
        raise ValueError(f"{name} is {number}; expected 0 or above, below 2**31")
    return number
