"""Files of token ids: .npy and raw binary, mapped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from lattice_bpd._core import FormatError
from lattice_bpd.text_input import NPY_MAGIC, Meter, refuse_foreign
from lattice_bpd.token_ids import Int32Array, Int64Array

_IDS_AT_ONCE = 1 << 20


def is_id_file(file: str) -> bool:
    """Whether the file name is that of a file of token ids."""
    return file.endswith((".npy", ".bin"))


def read_ids(
    file: str, vocab_size: int, eos_id: int | None, id_type: str | None, meter: Meter
) -> Iterator[tuple[Int32Array, Int64Array, bool]]:
    """The sequences of a file of token ids, a million ids at a time.

    Yields (N,) int32 token ids, the (number of sequences + 1,) int64 offsets of their sequences
    from 0 to N, and whether the last sequence continues in the next part.

    Args:
        file: a .npy file with an integer array: (T,) is one text, (N, T) are N sequences; or a
            .bin file of little-endian integers without a header, one text. A text is split into
            sequences after each eos_id.
        vocab_size: V; ids lie in 0..V-1.
        eos_id: the token id that ends a sequence; None: a text is one sequence.
        id_type: "uint16" or "uint32", of a .bin file; None: uint16 up to V = 65536.
        meter: counts the bytes read.

    Raises:
        OSError: it cannot be read.
        FormatError: it holds anything else; the message says where.
        ValueError: it is empty.
    """
    ids = map_npy(file) if file.endswith(".npy") else _map_bin(file, vocab_size, id_type)
    if ids.size == 0:
        raise ValueError(f"{file}: no token ids in the file; expected some, or leave the file out")
    if ids.ndim == 2:
        yield from _read_rows(file, ids, vocab_size, meter)
        return
    for begin in range(0, len(ids), _IDS_AT_ONCE):
        part = _check(file, ids[begin : begin + _IDS_AT_ONCE], begin, vocab_size)
        last = begin + len(part) == len(ids)
        ends = np.flatnonzero(part == eos_id) + 1 if eos_id is not None else np.zeros(0, np.int64)
        at_end = len(ends) > 0 and int(ends[-1]) == len(part)
        tail = [] if at_end else [len(part)]
        offsets = np.concatenate([[0], ends, tail]).astype(np.int64)
        meter.bytes_read += len(part) * ids.itemsize
        yield part, offsets, not last and not at_end


def _read_rows(
    file: str, ids: Any, vocab_size: int, meter: Meter
) -> Iterator[tuple[Int32Array, Int64Array, bool]]:
    rows, length = ids.shape
    step = max(1, _IDS_AT_ONCE // length)
    for row in range(0, rows, step):
        part = ids[row : row + step]
        flat = _check(file, part.reshape(-1), row * length, vocab_size)
        offsets = np.arange(len(part) + 1, dtype=np.int64) * length
        meter.bytes_read += part.nbytes
        yield flat, offsets, False


def map_npy(file: str) -> Any:
    """The integers of a .npy file, of shape (T,) or (N, T), mapped.

    Raises:
        OSError: it cannot be read.
        FormatError: it holds anything else.
    """
    try:
        ids = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, BadZipFile) as error:
        refuse_foreign(file, expected="a .npy file of integers", magic=NPY_MAGIC)
        raise FormatError(f"{file}: not a .npy file of numbers, or truncated ({error})") from error
    if not isinstance(ids, np.ndarray):
        raise FormatError(
            f"{file}: an archive of arrays; expected a .npy file with one array: save that array "
            "with numpy.save"
        )
    if ids.dtype.kind not in "iu" or ids.ndim not in (1, 2):
        raise FormatError(
            f"{file}: an array of shape {ids.shape} and type {ids.dtype}; expected integers of "
            "shape (T,) or (N, T)"
        )
    return ids


def _map_bin(file: str, vocab_size: int, id_type: str | None) -> Any:
    if id_type not in (None, "uint16", "uint32"):
        raise ValueError(f"id_type is {id_type!r}; expected uint16 or uint32")
    refuse_foreign(file, expected="raw token ids without a header", least=4)
    kind = np.dtype(id_type or ("uint16" if vocab_size <= 1 << 16 else "uint32")).newbyteorder("<")
    size = Path(file).stat().st_size
    if size % kind.itemsize != 0:
        raise FormatError(
            f"{file}: {size} bytes are not a whole number of {kind.name} ids; expected a multiple "
            f"of {kind.itemsize}: give the right type (id_type, --id-type), unless the file is "
            "truncated"
        )
    return np.memmap(file, dtype=kind, mode="r") if size else np.zeros(0, kind)


def _check(file: str, part: Any, begin: int, vocab_size: int) -> Int32Array:
    smallest, largest = int(part.min()), int(part.max())
    if smallest < 0 or largest >= vocab_size:
        bad = smallest if smallest < 0 else largest
        index = begin + int(np.flatnonzero(part == bad)[0])
        raise FormatError(
            f"{file}: token id {bad} at index {index}; expected 0..{vocab_size - 1}: raise "
            "vocab_size (--vocab-size), or the ids are of another type or tokenizer"
        )
    return np.ascontiguousarray(part, dtype=np.int32)
