"""Shards: Parquet files with one recorded text per row; columns are in docs/evaluate.md.

A shard is written to a temporary name and renamed, so that a file with its name is complete; its
checksum is in the manifest.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd._core import FormatError
from lattice_bpd.atomic_files import replacing
from lattice_bpd.extras import require
from lattice_bpd_kim2024.record.texts import RecordedText, Transitions

_ARRAYS = {
    "prompt_token_ids": "prompt", "output_token_ids": "output", "margins": "margins",
    "entropies": "entropies", "token_ids": "token_ids", "scores": "scores",
}  # fmt: skip
"""Fields of RecordedText by column."""
_TRANSITIONS = {"start": "start", "transitions": "scores"}
"""Fields of Transitions by column; the lists are empty without transitions."""
_SOURCE = "source_token_ids"
"""Of encoder-decoders, else empty; files of earlier versions lack the column."""
_EMPTY, _NO_IDS = np.zeros(0, np.float32), np.zeros(0, np.int32)


def write_shard(path: Path, texts: Sequence[RecordedText]) -> None:
    """Write one shard; a failure leaves no partial file.

    Raises:
        OSError: the disk is full, or the folder cannot be written; the message says what to do.
        ImportError: pyarrow is missing.
    """
    parquet = require("pyarrow.parquet", "lattice-bpd-kim2024")
    table = _to_table(texts)
    try:
        with replacing(path) as temporary:
            parquet.write_table(
                table,
                temporary,
                compression="zstd",
                use_dictionary=["finish", "task"],
                column_encoding={
                    f"{name}.list.element": "BYTE_STREAM_SPLIT"
                    for name in (*_ARRAYS, *_TRANSITIONS, _SOURCE)
                },
                row_group_size=max(1, len(texts)),
            )
    except OSError as error:
        raise _explain(error, path) from error


def read_shard(path: Path, num_slots: int) -> list[RecordedText]:
    """The texts of one shard.

    Args:
        path: of the shard.
        num_slots: H, from the manifest.

    Raises:
        FormatError: cut, altered, or not what the manifest says.
        OSError: it cannot be read.
        ImportError: pyarrow is missing.
    """
    pyarrow, parquet = (
        require("pyarrow", "lattice-bpd-kim2024"),
        require("pyarrow.parquet", "lattice-bpd-kim2024"),
    )
    try:
        table = parquet.read_table(path)
        return [_from_row(table, row, num_slots) for row in range(table.num_rows)]
    except FileNotFoundError:
        raise
    except (pyarrow.ArrowException, OSError, KeyError, ValueError) as error:
        raise FormatError(
            f"{path}: not a shard of a record ({error}); delete it and record again: only this "
            "shard is recorded anew"
        ) from error


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _to_table(texts: Sequence[RecordedText]) -> Any:
    pyarrow = require("pyarrow", "lattice-bpd-kim2024")
    string, strings = pyarrow.string(), pyarrow.list_(pyarrow.string())
    return pyarrow.table(
        {
            "task": pyarrow.array([text.task for text in texts], string),
            "name": pyarrow.array([text.name for text in texts], string),
            "references": pyarrow.array([list(text.references) for text in texts], strings),
            "finish": pyarrow.array([text.finish for text in texts], string),
            "limit": pyarrow.array([text.limit for text in texts], pyarrow.int32()),
            **{
                name: _lists([getattr(text, field) for text in texts])
                for name, field in _ARRAYS.items()
            },
            **{
                name: _lists([_transitions_of(text, field) for text in texts])
                for name, field in _TRANSITIONS.items()
            },
            _SOURCE: _lists([_NO_IDS if text.source is None else text.source for text in texts]),
            **{
                name: pyarrow.array([getattr(text.transitions, name, "") for text in texts], string)
                for name in ("unary", "normalization")
            },
        }
    )


def _lists(arrays: Sequence[npt.NDArray[Any]]) -> Any:
    """A list column: each array flattened, in C order."""
    pyarrow = require("pyarrow", "lattice-bpd-kim2024")
    offsets = np.cumsum([0, *(array.size for array in arrays)])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ValueError("record: a shard above 2**31 numbers; record with fewer texts in a shard")
    flat = np.concatenate([np.ascontiguousarray(array).reshape(-1) for array in arrays])
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets, pyarrow.int32()), flat)


def _transitions_of(text: RecordedText, field: str) -> Any:
    found = getattr(text.transitions, field, None)
    return _EMPTY if found is None else found


def _from_row(table: Any, row: int, num_slots: int) -> RecordedText:
    arrays = {field: _array(table, name, row) for name, field in _ARRAYS.items()}
    num_tokens = len(arrays["output"])
    top_k = len(arrays["token_ids"]) // (num_tokens * num_slots)
    shapes = {
        "token_ids": (num_tokens, num_slots, top_k), "scores": (num_tokens, num_slots, top_k),
        "entropies": (num_tokens, num_slots + 1), "margins": (num_tokens,),
    }  # fmt: skip
    shaped: dict[str, Any] = {
        field: array.reshape(shapes.get(field, -1)) for field, array in arrays.items()
    }
    source = _array(table, _SOURCE, row) if _SOURCE in table.column_names else _NO_IDS
    return RecordedText(
        **shaped,
        **{name: table[name][row].as_py() for name in ("limit", "finish", "task", "name")},
        references=tuple(table["references"][row].as_py()),
        transitions=_transitions(table, row, (num_tokens, num_slots, top_k)),
        source=source if len(source) else None,
    )


def _transitions(table: Any, row: int, shape: tuple[int, int, int]) -> Transitions | None:
    """Those of a text of m tokens, H slots and k candidates."""
    (tokens, slots, top_k), unary = shape, table["unary"][row].as_py()
    if not unary:
        return None
    normalization = table["normalization"][row].as_py()
    start, scores = (_array(table, name, row) for name in _TRANSITIONS)
    if not len(start):
        return Transitions(None, None, unary, normalization)
    return Transitions(
        start.reshape(tokens, top_k), scores.reshape(tokens, slots - 1, top_k, top_k),
        unary, normalization,
    )  # fmt: skip


def _array(table: Any, name: str, row: int) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = table[name][row].values.to_numpy(zero_copy_only=False)
    return found


def _explain(error: OSError, path: Path) -> OSError:
    """The error of a shard that could not be written, with what to do."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    advice = "the disk is full: free some space" if full else "expected a writable folder"
    return OSError(
        f"{path}: could not be written ({error}); {advice} and run the same command again; "
        "complete shards are kept"
    )
