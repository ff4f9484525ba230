"""The output folder of a head training: what it is, how far it is, and whose it is.

training.json    options, the target's fingerprint, whether finished, and the result
losses.jsonl     the loss log          losses.svg    its picture, when finished
training/        text and checkpoint of an unfinished run; removed at the end
config.json, blockwise_heads.json, ...               the model, when finished
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, TextIO

import torch
from transformers import PreTrainedModel

from lattice_bpd._core import FormatError

RECORD = "training.json"
_LOCK = ".lock"
_FORMAT = "lattice_bpd.head_training"
_VERSION = 1


class RunFolder:
    """An output folder.

    Args:
        path: may not exist yet.

    Attributes:
        path: the folder.
        work: the folder inside for what an unfinished run needs.
        log: the loss log's path.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.work = path, path / "training"
        self.log, self.plot = path / "losses.jsonl", path / "losses.svg"
        self._locked: TextIO | None = None

    def begin(
        self, options: dict[str, Any], base: str | None, *, resume: bool | None, restart: bool
    ) -> bool:
        """Make the folder ready for a run, or find the run that it holds.

        Args:
            options: all that the result depends on, as JSON gives it back.
            base: fingerprint of the target; None without one.
            resume: True: there must be an unfinished run.
            restart: remove an earlier run.

        Returns:
            Whether the run is finished already.

        Raises:
            ValueError: the folder holds something else, or a run of other options or another base.
            FormatError: its record is damaged.
            OSError: it cannot be written, or another process trains there.
        """
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(f"{self.path}: is a file; expected a folder for the result")
        record = read_record(self.path)
        if record is None and self.path.is_dir() and any(self.path.iterdir()):
            raise ValueError(
                f"{self.path}: holds files and no {RECORD}, so it is not of this command; name an "
                "empty or new folder"
            )
        if record is None and resume:
            raise ValueError(f"{self.path}: no run to resume; leave --resume out to begin one")
        if record is not None and not restart:
            _compare(self.path, record, options, base)
            if record["finished"]:
                return True
        self._lock()
        if record is not None and restart:
            self._clear(record)
        if record is None or restart:
            self._write({"options": options, "base_fingerprint": base, "finished": False})
        return False

    def close(self) -> None:
        """Let others train here."""
        if self._locked is not None:
            self._locked.close()

    def _lock(self) -> None:
        """Keep a second run out of the folder while this process lives."""
        self.work.mkdir(parents=True, exist_ok=True)
        self._locked = (self.work / _LOCK).open("w")
        try:
            fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(
                f"{self.path}: another process trains here; wait for it, or name another folder"
            ) from error

    def finish(
        self, options: dict[str, Any], base: str, result: dict[str, Any], files: list[str]
    ) -> None:
        """Mark the run as finished.

        Args:
            options: as given to begin.
            base: fingerprint of the target that the heads now belong to.
            result: for JSON.
            files: names of the model's files, which --restart removes.

        Raises:
            OSError: the folder cannot be written.
        """
        record = {"options": options, "base_fingerprint": base, "finished": True}
        self._write({**record, "result": result, "files": files})
        shutil.rmtree(self.work)

    def _write(self, record: dict[str, Any]) -> None:
        temporary = self.path / f".{RECORD}"
        text = json.dumps({"format": _FORMAT, "version": _VERSION, **record}, indent=2)
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(self.path / RECORD)

    def _clear(self, record: dict[str, Any]) -> None:
        """Remove an earlier run and what it wrote, the record last."""
        for path in self.work.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != _LOCK:
                path.unlink()
        for name in record.get("files", []):
            (self.path / Path(name).name).unlink(missing_ok=True)
        for path in (self.log, self.plot, self.path / RECORD):
            path.unlink(missing_ok=True)


def read_record(folder: Path) -> dict[str, Any] | None:
    """The content of training.json, or None where there is none.

    Raises:
        FormatError: it is damaged or of another version.
    """
    path = folder / RECORD
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] != _FORMAT or record["version"] != _VERSION:
            raise ValueError(f"format {record['format']!r}, version {record['version']!r}")
        if not isinstance(record["options"], dict) or not isinstance(record["finished"], bool):
            raise ValueError("options or finished are of another type")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{path}: damaged, or of another version ({error}); remove it with the folder, or "
            "name another folder"
        ) from error
    return dict(record)


def _compare(path: Path, record: dict[str, Any], options: dict[str, Any], base: str | None) -> None:
    before = record["options"]
    cure = "give the same options, another folder, or --restart to throw that run away"
    for name in sorted({*before, *options}):
        if before.get(name) != options.get(name):
            raise ValueError(
                f"{path}: holds a run with {name} {before.get(name)!r}, asked for is "
                f"{options.get(name)!r}; {cure}"
            )
    if record["base_fingerprint"] != base and not record["finished"]:
        raise ValueError(
            f"{path}: holds a run on another base (its weights differ from those of "
            f"{options['base']}); {cure}"
        )


def fingerprint(model: PreTrainedModel) -> str:
    """32 hexadecimal digits of a target's weights, the same for all dtypes that hold them."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().data)
    return digest.hexdigest()[:32]
