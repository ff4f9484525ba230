"""Equality by content, for dataclasses of arrays."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np


def have_same_contents(first: Any, second: Any) -> bool:
    """Whether all fields of two dataclasses of one type are equal.

    Arrays are equal if shapes, element types and elements are, in numpy or torch on any device.
    """
    return all(
        _is_equal(getattr(first, field.name), getattr(second, field.name))
        for field in fields(first)
    )


def _is_equal(first: Any, second: Any) -> bool:
    if not hasattr(first, "shape"):
        return bool(first == second)
    one, other = _on_host(first), _on_host(second)
    return one.dtype == other.dtype and np.array_equal(one, other)


def _on_host(array: Any) -> Any:
    return array.detach().cpu().numpy() if hasattr(array, "detach") else np.asarray(array)
