"""Checks of arguments, and whose name their errors begin with."""

from __future__ import annotations

import math
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


def check_number(
    name: str, value: Any, least: float | None = None, *, positive: bool = False
) -> float:
    """The value as a float.

    Args:
        name: what the message begins with.
        value: a number of any type, numpy's and torch's included.
        least: smallest that is allowed; None: no limit.
        positive: whether it must be above 0.

    Raises:
        TypeError: no number, or a bool.
        ValueError: out of range, not finite, or an integer too large for a float.
    """
    expected = "a finite number"
    if positive or least is not None:
        expected += " above 0" if positive else f", {least:g} or more"
    try:
        if is_bool(value) or isinstance(value, (str, bytes)):
            raise TypeError
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} is out of a float's range; expected {expected}") from None
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {value!r}; expected {expected}") from None
    is_low = number <= 0.0 if positive else least is not None and number < least
    if not math.isfinite(number) or is_low:
        raise ValueError(f"{name} is {value}; expected {expected}")
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
