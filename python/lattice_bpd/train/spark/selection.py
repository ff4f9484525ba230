"""Exact selection of the n-th smallest of distributed numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lattice_bpd.extras import require
from lattice_bpd.train.spark.errors import clear_errors, guarded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DIGIT_BITS = 16
_SIGN = np.uint64(1 << 63)


def nth_smallest(numbers: DataFrame, n: int) -> float:
    """The n-th smallest (n from 1) of the frame's only column, doubles without NaN.

    Radix selection: four passes, each with a histogram of the next 16 bits of the remaining
    candidates. The driver holds 2**16 counts for any size.

    Raises:
        ValueError: there are fewer than n.
    """
    functions = require("pyspark.sql.functions", "spark")
    prefix = 0
    for shift in range(64 - _DIGIT_BITS, -1, -_DIGIT_BITS):
        counts = numbers.mapInArrow(guarded(_Histogram(shift, prefix)), "digit int, count long")
        with clear_errors():
            table = counts.groupBy("digit").agg(functions.sum("count")).toArrow()
        histogram = np.zeros(1 << _DIGIT_BITS, np.int64)
        histogram[table.column(0).to_numpy()] = table.column(1).to_numpy()
        up_to = np.cumsum(histogram)
        if up_to[-1] < n:
            raise ValueError(f"there are {up_to[-1]} numbers; expected at least {n}")
        digit = int(np.searchsorted(up_to, n))
        n -= int(up_to[digit] - histogram[digit])
        prefix = prefix << _DIGIT_BITS | digit
    return float(_to_doubles(np.array([prefix], np.uint64))[0])


class _Histogram:
    """For mapInArrow: counts each digit after the prefix."""

    def __init__(self, shift: int, prefix: int) -> None:
        self._shift, self._prefix = shift, prefix

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        pa = require("pyarrow", "spark")
        histogram = np.zeros(1 << _DIGIT_BITS, np.int64)
        for batch in batches:
            digits = _to_ordered(batch.column(0).to_numpy()) >> np.uint64(self._shift)
            mine = digits >> np.uint64(_DIGIT_BITS) == np.uint64(self._prefix)
            low = digits[mine] & np.uint64((1 << _DIGIT_BITS) - 1)
            histogram += np.bincount(low.astype(np.int64), minlength=len(histogram))
        used = np.flatnonzero(histogram)
        columns = [pa.array(used.astype(np.int32)), pa.array(histogram[used])]
        yield pa.record_batch(columns, names=["digit", "count"])


def _to_ordered(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint64]:
    """Integers in the same order as the doubles."""
    bits = values.view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _to_doubles(ordered: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    bits = np.where(ordered & _SIGN, ordered ^ _SIGN, ~ordered)
    return bits.astype(np.uint64).view(np.float64)
