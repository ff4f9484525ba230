"""Shards: Parquet files of recorded texts, one row a text. The columns are in docs/evaluate.md.

A shard is written to a temporary name and renamed, so that one with its name is whole; its
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
from lattice_bpd.evaluate.record.texts import RecordedText
from lattice_bpd.extras import require

_PLAIN = ("prompt_token_ids", "output_token_ids", "margins", "entropies", "token_ids", "scores")


def write_shard(path: Path, texts: Sequence[RecordedText]) -> None:
    """Write one shard; on any failure nothing is left of it.

    Raises:
        OSError: the disk is full, or the folder cannot be written; the message says what to do.
        ImportError: pyarrow is missing (extra `eval`).
    """
    parquet = require("pyarrow.parquet", "eval")
    table = _to_table(texts)
    temporary = path.with_name(f".{path.name}")
    try:
        parquet.write_table(
            table,
            temporary,
            compression="zstd",
            use_dictionary=["finish", "task"],
            column_encoding={f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in _PLAIN},
            row_group_size=max(1, len(texts)),
        )
        temporary.replace(path)
    except OSError as error:
        raise _explain(error, path) from error
    finally:
        temporary.unlink(missing_ok=True)


def read_shard(path: Path, num_slots: int, top_k: int) -> list[RecordedText]:
    """The texts of one shard.

    Args:
        path: of the shard.
        num_slots: H, from the manifest.
        top_k: k, from the manifest.

    Raises:
        FormatError: cut, altered, or not what the manifest says.
        OSError: it cannot be read.
        ImportError: pyarrow is missing (extra `eval`).
    """
    pyarrow, parquet = require("pyarrow", "eval"), require("pyarrow.parquet", "eval")
    try:
        table = parquet.read_table(path)
        return [_from_row(table, row, num_slots, top_k) for row in range(table.num_rows)]
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
    pyarrow = require("pyarrow", "eval")
    columns: dict[str, Any] = {
        "task": pyarrow.array([text.task for text in texts], pyarrow.string()),
        "name": pyarrow.array([text.name for text in texts], pyarrow.string()),
        "references": pyarrow.array(
            [list(text.references) for text in texts], pyarrow.list_(pyarrow.string())
        ),
        "finish": pyarrow.array([text.finish for text in texts], pyarrow.string()),
        "limit": pyarrow.array([text.limit for text in texts], pyarrow.int32()),
        "prompt_token_ids": _lists([text.prompt for text in texts]),
        "output_token_ids": _lists([text.output for text in texts]),
        "margins": _lists([text.margins for text in texts]),
        "entropies": _lists([text.entropies for text in texts]),
        "token_ids": _lists([text.token_ids for text in texts]),
        "scores": _lists([text.scores for text in texts]),
    }
    return pyarrow.table(columns)


def _lists(arrays: Sequence[npt.NDArray[Any]]) -> Any:
    """A list column: each array flattened, in C order."""
    pyarrow = require("pyarrow", "eval")
    offsets = np.cumsum([0, *(array.size for array in arrays)])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ValueError("record: a shard above 2**31 numbers; record with fewer texts in a shard")
    flat = np.concatenate([np.ascontiguousarray(array).reshape(-1) for array in arrays])
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets, pyarrow.int32()), flat)


def _from_row(table: Any, row: int, num_slots: int, top_k: int) -> RecordedText:
    def numbers(name: str) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = table[name][row].values.to_numpy(zero_copy_only=False)
        return found

    output = numbers("output_token_ids")
    shape = (len(output), num_slots, top_k)
    return RecordedText(
        prompt=numbers("prompt_token_ids"),
        output=output,
        limit=table["limit"][row].as_py(),
        token_ids=numbers("token_ids").reshape(shape),
        scores=numbers("scores").reshape(shape),
        entropies=numbers("entropies").reshape(len(output), num_slots + 1),
        margins=numbers("margins").reshape(shape[:1]),
        finish=table["finish"][row].as_py(),
        task=table["task"][row].as_py(),
        name=table["name"][row].as_py(),
        references=tuple(table["references"][row].as_py()),
    )


def _explain(error: OSError, path: Path) -> OSError:
    """What to do about a shard that could not be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    advice = "the disk is full: free some room" if full else "expected a folder that can be written"
    return OSError(
        f"{path}: could not be written ({error}); {advice} and run the same command again; whole "
        "shards are kept"
    )
