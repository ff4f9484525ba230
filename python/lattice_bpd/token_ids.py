"""Conversion of token ids (lists, numpy arrays, torch tensors) to int32 arrays."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.arguments import is_bool

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

_INT32_MAX = int(np.iinfo(np.int32).max)
_INT64_MAX = int(np.iinfo(np.int64).max)


def to_token_ids(token_ids: Any, where: str, vocab_size: int | None = None) -> Int32Array:
    """Converts token ids to a contiguous array.

    Args:
        token_ids: (T,) integers: a sequence, numpy array or torch tensor on any device.
        where: Name for error messages, such as ``"context"``.
        vocab_size: If given, ids must lie in 0..vocab_size-1.

    Returns:
        (T,) int32.

    Raises:
        TypeError: As :func:`integer_array`.
        ValueError: Not one-dimensional, or an id out of range.
    """
    packed = pack([token_ids], vocab_size) if isinstance(token_ids, list) else None
    if packed is not None:
        return packed[0]
    array = _as_array(token_ids, where)
    if array.ndim != 1:
        raise ValueError(f"{where} has shape {array.shape}; expected one dimension of token ids")
    array = _as_integers(array, token_ids, where)
    if array.size == 0:
        return np.zeros(0, np.int32)
    limit = _INT32_MAX if vocab_size is None else vocab_size - 1
    smallest, largest = int(array.min()), int(array.max())
    if smallest < 0 or largest > limit:
        bad = smallest if smallest < 0 else largest
        position = int(np.flatnonzero(array == bad)[0])
        raise ValueError(
            f"{where} has token id {bad} at position {position}; expected 0..{limit}"
            + ("" if vocab_size is None else f" (a vocabulary of {vocab_size}); use its tokenizer")
        )
    return np.ascontiguousarray(array, dtype=np.int32)


def integer_array(values: Any, where: str) -> npt.NDArray[Any]:
    """Token ids of every kind as a numpy array.

    Args:
        values: Integers of any shape and type: a number, a sequence of numbers (Python's, numpy's
            or torch's), a numpy array, or a torch tensor on any device.
        where: Name for error messages.

    Returns:
        Integers in the machine's byte order; int32 if there are none. All fit int64.

    Raises:
        TypeError: The elements are not integers, or are bools; or a masked array or meta tensor,
            whose elements may have no value.
        ValueError: Sequences of different lengths, or a number above 2^63 - 1.
    """
    return _as_integers(_as_array(values, where), values, where)


def _as_array(values: Any, where: str) -> npt.NDArray[Any]:
    check_has_values(values, where)
    if hasattr(values, "detach"):  # a torch tensor, without importing torch
        values = values.detach().cpu().numpy()
    elif isinstance(values, Sequence) and any(
        hasattr(kind, "detach") for kind in set(map(type, values))
    ):
        values = [one.detach().cpu().numpy() if hasattr(one, "detach") else one for one in values]
    try:
        return np.asarray(values)
    except ValueError as error:  # ragged nested sequences
        raise ValueError(
            f"{where}: expected one sequence of token ids, found sequences inside it ({error})"
        ) from error


def _as_integers(array: npt.NDArray[Any], values: Any, where: str) -> npt.NDArray[Any]:
    """The array of `values`, checked."""
    kind = array.dtype
    if array.size == 0 and kind != np.bool_:
        return np.zeros(array.shape, np.int32)
    if isinstance(values, Sequence) and array.ndim == 1:
        if set(map(type, values)) != {int} and any(map(is_bool, values)):
            kind = np.dtype(np.bool_)  # numpy reads [7, True] as integers
        elif kind == np.float64 and not any(isinstance(value, float) for value in values):
            array = np.array(list(map(operator.index, values)))  # int64 and uint64 in one list
            kind = array.dtype
    if kind.kind not in "iu":
        raise TypeError(f"{where} has elements of type {kind}; expected integers")
    if kind == np.uint64 and int(array.max()) > _INT64_MAX:
        raise ValueError(f"{where} has {array.max()}; expected token ids, 0..{_INT32_MAX}")
    return array.astype(kind.newbyteorder("="), copy=False)


def check_has_values(array: Any, where: str) -> None:
    """Rejects arrays whose elements may have no value.

    Args:
        array: Anything; numpy's masked arrays and torch's meta tensors are rejected.
        where: Name for error messages.

    Raises:
        TypeError: A masked array or meta tensor.
    """
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"{where} is a masked numpy array; expected an array without a mask: use "
            ".compressed() or .filled(value)"
        )
    if getattr(array, "is_meta", False):
        raise TypeError(
            f"{where} is a tensor on torch's meta device, which holds no values; expected one "
            "with data, on the CPU or an accelerator"
        )


def pack(rows: list[Any], vocab_size: int | None = None) -> tuple[Int32Array, Int64Array] | None:
    """Concatenates common kinds of token id sequences, fast.

    Args:
        rows: N sequences of token ids.
        vocab_size: If given, ids must lie in 0..vocab_size-1.

    Returns:
        As :func:`concatenate`, or None if a row is neither a list of ints nor a contiguous int32 or
        int64 array, or an id is out of range: then :func:`to_token_ids` converts it or raises.
    """
    largest = _INT32_MAX if vocab_size is None else vocab_size - 1
    return _core.pack_token_ids(rows, largest)


def concatenate(arrays: Sequence[Int32Array]) -> tuple[Int32Array, Int64Array]:
    """Concatenates arrays.

    Args:
        arrays: N arrays of token ids, each (T_i,) int32.

    Returns:
        (sum T_i,) int32 token ids, and (N + 1,) int64 offsets: array i is
        ``token_ids[offsets[i]:offsets[i + 1]]``.
    """
    offsets = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum([len(array) for array in arrays], out=offsets[1:])
    flat = np.concatenate(arrays) if arrays else np.zeros(0, np.int32)
    return flat.astype(np.int32, copy=False), offsets


def is_sequence_of_sequences(value: Any) -> bool:
    """Whether `value` holds sequences or texts rather than single numbers, or letters."""
    if hasattr(value, "ndim"):
        return int(value.ndim) > 1
    # a tensor of 0 dimensions has a length too
    return (
        isinstance(value, Iterable)
        and not isinstance(value, str)
        and any(hasattr(item, "__len__") and getattr(item, "ndim", 1) > 0 for item in value)
    )


def count_shared(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Length of the common prefix of two sequences of a kind, which can be sliced."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low + 1 < high:  # binary search: they agree up to low and differ below high
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
