"""Checks of arguments, and whose name their errors begin with."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def check_int(name: str, value: Any, least: int, most: int | None = None) -> int:
    """The value as an int.

    Args:
        name: what the message begins with, such as "generate: max_new_tokens".
        value: an integer of any type, numpy's included.
        least: smallest that is allowed.
        most: largest that is allowed; None: no limit.

    Raises:
        TypeError: not an integer, or a bool.
        ValueError: out of range.
    """
    expected = f"{least} or more" if most is None else f"{least}..{most}"
    try:
        if is_bool(value):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; expected an integer, {expected}") from None
    if number < least or (most is not None and number > most):
        raise ValueError(f"{name} is {number}; expected {expected}")
    return number


def is_bool(value: Any) -> bool:
    """Whether a number is a bool of Python, numpy or torch."""
    return isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")


@contextmanager
def errors_named(where: str, *callees: str) -> Iterator[None]:
    """Errors from inside the block begin with the name of the function that the user called.

    Args:
        where: that name.
        callees: names of functions that it calls; an error that begins with one and a colon
            begins with `where` instead.
    """
    try:
        yield
    except (TypeError, ValueError, MemoryError) as error:
        name, colon, message = str(error).partition(": ")
        if colon and name in callees and error.args[1:] == ():
            error.args = (f"{where}: {message}",)
        raise
