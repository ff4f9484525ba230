"""Conversion of token ids (lists, numpy arrays, torch tensors) to int32 arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

_INT32_MAX = int(np.iinfo(np.int32).max)


def to_token_ids(token_ids: Any, where: str, vocab_size: int | None = None) -> Int32Array:
    """Converts token ids to a contiguous array.

    Args:
        token_ids: (T,) integers: a sequence, numpy array or torch tensor on any device.
        where: Name for error messages, such as ``"context"``.
        vocab_size: If given, ids must lie in 0..vocab_size-1.

    Returns:
        (T,) int32.

    Raises:
        TypeError: The elements are not integers; or a masked array or meta tensor, whose elements
            may have no value.
        ValueError: Not one-dimensional, or an id out of range.
    """
    packed = pack([token_ids], vocab_size) if isinstance(token_ids, list) else None
    if packed is not None:
        return packed[0]
    check_has_values(token_ids, where)
    if hasattr(token_ids, "detach"):  # a torch tensor, without importing torch
        token_ids = token_ids.detach().cpu().numpy()
    try:
        array = np.asarray(token_ids)
    except ValueError as error:  # ragged nested sequences
        raise ValueError(
            f"{where}: expected one sequence of token ids, found sequences inside it ({error})"
        ) from error
    if array.ndim != 1:
        raise ValueError(f"{where} has shape {array.shape}; expected one dimension of token ids")
    if array.size == 0:
        return np.zeros(0, np.int32)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{where} has elements of type {array.dtype}; expected integers")
    limit = _INT32_MAX if vocab_size is None else vocab_size - 1
    smallest, largest = int(array.min()), int(array.max())
    if smallest < 0 or largest > limit:
        bad = smallest if smallest < 0 else largest
        position = int(np.flatnonzero(array == bad)[0])
        raise ValueError(
            f"{where} has token id {bad} at position {position}; expected 0..{limit}"
            + ("" if vocab_size is None else f" (a vocabulary of {vocab_size})")
        )
    return np.ascontiguousarray(array, dtype=np.int32)


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
    """Whether `value` holds sequences rather than single numbers."""
    if hasattr(value, "ndim"):
        return int(value.ndim) > 1
    return isinstance(value, Iterable) and any(
        hasattr(item, "__len__") or getattr(item, "ndim", 0) > 0 for item in value
    )
