"""Comparison of the results of searches."""

from dataclasses import fields
from typing import Any

import numpy as np


def is_same(first: Any, second: Any) -> bool:
    """Whether all arrays of two results have the same shapes, element types and elements."""
    for field in fields(first):
        one, other = (np.asarray(getattr(result, field.name)) for result in (first, second))
        if one.dtype != other.dtype or not np.array_equal(one, other):
            return False
    return True
