"""Files of a record: manifest, shards, reading.

A shard is written to a temporary name and renamed, so that a file with its name is complete; its
checksum is in the manifest.
"""

from __future__ import annotations

import errno
import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lattice_bpd._core import FormatError
from lattice_bpd.atomic_files import check_header, replacing, write_json
from lattice_bpd.extensions import require
from lattice_bpd_kim2024.record.texts import RecordedText, Transitions

if TYPE_CHECKING:
    from lattice_bpd.decode.state.model import DraftingModel

MANIFEST_FILE = "manifest.json"
_FORMAT, _VERSION = "lattice-bpd record", 2  # 2: transitions of the heads


@dataclass(frozen=True)
class Shard:
    """One file of a record.

    Attributes:
        file: its name.
        texts: texts in it.
        steps: recorded positions in it.
        num_bytes: its size.
        sha256: its checksum.
    """

    file: str
    texts: int
    steps: int
    num_bytes: int
    sha256: str


@dataclass
class Manifest:
    """Contents and origin of a record.

    Attributes:
        task: name of the task.
        model: the model's folder, as given.
        model_fingerprint: changes with any weight of target or heads.
        prompts_fingerprint: changes with any token of any prompt.
        vocab_size: V.
        num_slots: H.
        max_positions: of the target; None if its config has no limit.
        top_k: k, the most; heads that give candidates may give fewer.
        max_new_tokens: maximum number of tokens decoded after each prompt.
        stop_token_ids: decoding ends after these.
        num_texts: texts of the finished record.
        texts_per_shard: of all shards but the last.
        tokenizer: the tokenizer's file, as given; None if prompts were token ids.
        shards: in order; None for one that is not written yet.
    """

    task: str
    model: str
    model_fingerprint: str
    prompts_fingerprint: str
    vocab_size: int
    num_slots: int
    max_positions: int | None
    top_k: int
    max_new_tokens: int
    stop_token_ids: list[int]
    num_texts: int
    texts_per_shard: int
    tokenizer: str | None = None
    shards: list[Shard | None] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether all shards were written."""
        return all(shard is not None for shard in self.shards)

    @property
    def bytes_per_step(self) -> float:
        """Bytes on disk per recorded position; 0 without any."""
        written = [shard for shard in self.shards if shard is not None]
        steps = sum(shard.steps for shard in written)
        return sum(shard.num_bytes for shard in written) / steps if steps else 0.0

    def differences(self, other: Manifest) -> list[str]:
        """What another record does not share, such as "top_k: 16 there, 8 now"."""
        mine, its = asdict(self), asdict(other)
        names = [name for name in mine if name not in ("shards", "model", "tokenizer")]
        return [f"{n}: {mine[n]} there, {its[n]} now" for n in names if mine[n] != its[n]]

    def save(self, directory: Path) -> None:
        """Write the manifest; an existing one is replaced only when the new one is complete."""
        value = {"format": _FORMAT, "version": _VERSION, **asdict(self)}
        value.update(complete=self.complete, bytes_per_step=round(self.bytes_per_step, 1))
        write_json(directory / MANIFEST_FILE, value)


def load_manifest(directory: Path) -> Manifest:
    """The manifest of a record.

    Raises:
        FileNotFoundError: there is none.
        FormatError: another format or version.
    """
    path = directory / MANIFEST_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such file; expected the folder of a record; make one with lattice-bpd "
            "record"
        )
    try:
        value = check_header(json.loads(path.read_text(encoding="utf-8")), _FORMAT, _VERSION)
        value.pop("complete"), value.pop("bytes_per_step")
        shards = [None if shard is None else Shard(**shard) for shard in value.pop("shards")]
        return Manifest(**value, shards=shards)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FormatError(
            f"{path}: not the manifest of a record ({error!r}); record again into an empty folder"
        ) from error


def fingerprint_prompts(prompts: Sequence[Sequence[int]]) -> str:
    """A hash that changes with any token of any prompt."""
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(f"{len(prompt)} ".encode())
        digest.update(np.array(prompt, np.int64).tobytes())
    return digest.hexdigest()[:16]


def fingerprint_model(model: DraftingModel) -> str:
    """A hash that changes with any weight of the target, or of heads that are or have modules."""
    import torch

    base: Any = model.target.base
    owner: Any = model.given_heads
    heads = owner if isinstance(owner, torch.nn.Module) else getattr(owner, "drafter", None)
    digest = hashlib.sha256()
    for part, module in (("base", base), ("heads", heads)):
        tensors = module.state_dict() if isinstance(module, torch.nn.Module) else {}
        for name, tensor in sorted(tensors.items()):
            digest.update(f"{part}.{name} {tuple(tensor.shape)} {tensor.dtype} ".encode())
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


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


RECORDS_FOLDER = "record"


@dataclass(frozen=True)
class Record:
    """A record in memory: the texts of all intact shards, and the names of the others."""

    directory: Path
    manifest: Manifest
    texts: list[RecordedText]
    skipped: list[str]


def read_record(directory: str | Path) -> Record:
    """Read a record; shards that are missing, cut or altered are left out with a warning each.

    Raises:
        FileNotFoundError: no record there.
        FormatError: a damaged manifest, or no intact shard.
        ImportError: pyarrow is missing.
    """
    directory = Path(directory)
    manifest = load_manifest(directory)
    texts: list[RecordedText] = []
    skipped: list[str] = []
    for number, shard in enumerate(manifest.shards):
        name = f"shard-{number:05d}.parquet" if shard is None else shard.file
        try:
            if shard is None:
                raise FormatError(f"{directory / name}: not recorded yet")
            if checksum(directory / name) != shard.sha256:
                raise FormatError(f"{directory / name}: altered or cut, its checksum differs")
            texts += read_shard(directory / name, manifest.num_slots)
        except (OSError, FormatError) as error:
            skipped.append(name)
            warnings.warn(
                f"{error}; the shard is left out; run lattice-bpd record again to repair it",
                stacklevel=2,
            )
    if not texts:
        raise FormatError(
            f"{directory}: none of its {len(manifest.shards)} shards is whole; record again"
        )
    return Record(directory, manifest, texts, skipped)


def find_records(run: str | Path) -> dict[str, Path]:
    """The records of a run, by task.

    Args:
        run: the folder of a record, or one that holds `record/TASK/` folders.

    Raises:
        FileNotFoundError: neither.
    """
    run = Path(run)
    if (run / MANIFEST_FILE).is_file():
        return {load_manifest(run).task or run.name: run}
    found = sorted((run / RECORDS_FOLDER).glob(f"*/{MANIFEST_FILE}"))
    if not found:
        raise FileNotFoundError(
            f"{run}: no {MANIFEST_FILE} and no {RECORDS_FOLDER}/TASK/{MANIFEST_FILE} there; "
            "expected the output folder of lattice-bpd record or lattice-bpd evaluate"
        )
    return {path.parent.name: path.parent for path in found}
