"""Paths and token ids as options of LM files."""

from __future__ import annotations

import operator
import os

from lattice_bpd.vocabulary import StrPath


def native_path(path: StrPath) -> str:
    """The path as the system takes it; a NUL character would end it early."""
    native = os.fspath(path)
    if "\0" in native:
        raise ValueError(f"the path {native!r} has a NUL character in it; expected none")
    return native


def optional_id(name: str, value: int | None) -> int | None:
    """A token id or size that may be missing, as an int that the core can take.

    Raises:
        TypeError: Not an integer.
        ValueError: Negative, or no 32-bit number.
    """
    return None if value is None else checked_id(name, value)


def checked_id(name: str, value: int) -> int:
    """A token id or size as an int that the core can take.

    Raises:
        TypeError: Not an integer.
        ValueError: Negative, or no 32-bit number.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; expected an integer") from None
    if not 0 <= number < 2**31:
        raise ValueError(f"{name} is {number}; expected 0 or above, below 2**31")
    return number
