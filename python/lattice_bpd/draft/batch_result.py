"""Arrays of a batch that compare by their contents."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np


def _is_equal(first: Any, second: Any) -> bool:
    if not hasattr(first, "shape"):
        return bool(first == second)
    one, other = _on_host(first), _on_host(second)
    return one.dtype == other.dtype and np.array_equal(one, other)


def _on_host(array: Any) -> Any:
    return array.detach().cpu().numpy() if hasattr(array, "detach") else np.asarray(array)


class BatchResult:
    """Arrays for B lattices, as a dataclass; `==` compares contents."""

    counts: Any

    def __eq__(self, other: object) -> bool:
        """Whether all arrays have the same shapes, element types and elements, on any device."""
        if type(other) is not type(self):
            return NotImplemented
        return all(
            _is_equal(getattr(self, field.name), getattr(other, field.name))
            for field in fields(self)  # type: ignore[arg-type]
        )

    def __len__(self) -> int:
        """B, the number of lattices."""
        return len(self.counts)
