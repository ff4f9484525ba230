"""The output folder of a head training: state, lock and record.

training.json    options, the target's fingerprint, whether finished, and the result
losses.jsonl     the loss log          losses.svg    its plot, when finished
training/        text and checkpoint of an unfinished run; removed at the end
config.json, blockwise_heads.json, ...               the model, when finished
"""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from lattice_bpd._core import FormatError
from lattice_bpd.atomic_files import check_header, locked, write_json

RECORD = "training.json"
HEADS = "head_training"
TEXTS = ("text.bin", "validation.bin")  # of training and validation, in the folder of the run
_VERSION = 1


class RunFolder:
    """The output folder of a run.

    Args:
        path: the folder, which need not exist.
        kind: of the run, in the record's format.

    Attributes:
        path: the folder.
        kind: of the run.
        work: its subfolder for files of an unfinished run.
        log: path of the loss log.
    """

    def __init__(self, path: Path, kind: str = HEADS) -> None:
        self.path, self.kind, self.work = path, kind, path / "training"
        self.log, self.plot = path / "losses.jsonl", path / "losses.svg"
        self._lock = ExitStack()

    def begin(
        self, options: dict[str, Any], base: str | None, *, resume: bool | None, restart: bool
    ) -> bool:
        """Prepares the folder for a run, or finds the run that it holds.

        Args:
            options: everything that the result depends on, as JSON restores it.
            base: fingerprint of the target, if any.
            resume: True: fail without an unfinished run.
            restart: remove an earlier run.

        Returns:
            Whether the run is already finished.

        Raises:
            ValueError: the folder has other files, or a run with other options or another base that
            trained or generated text.
            FormatError: the record is damaged.
            OSError: it cannot be written, or another process trains there.
        """
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(f"{self.path}: is a file; expected a folder for the result")
        record = read_record(self.path, self.kind)
        if record is None and self.path.is_dir() and any(self.path.iterdir()):
            raise ValueError(
                f"{self.path}: has files but no {RECORD}; expected an empty or new folder, "
                "or one of an earlier training"
            )
        if record is None and resume:
            raise ValueError(f"{self.path}: no run to resume; leave --resume out to start one")
        if record is not None and self._has_only_text():
            matches = (record["options"], record["base_fingerprint"]) == (options, base)
            restart = restart or not matches
        if record is not None and not restart:
            _compare(self.path, record, options, base)
            if record["finished"]:
                return True
        self.work.mkdir(parents=True, exist_ok=True)
        self._lock.enter_context(locked(self.work))
        if record is not None and restart:
            self._clear(record)
        if record is None or restart:
            self._write({"options": options, "base_fingerprint": base, "finished": False})
        return False

    def close(self) -> None:
        """Releases the lock."""
        self._lock.close()

    def _has_only_text(self) -> bool:
        """Whether the run in the folder ended before it trained or generated anything."""
        try:
            names = {path.name for path in self.work.iterdir()}
        except FileNotFoundError:  # finished
            return False
        return names <= set(TEXTS) and not self.log.exists()

    def finish(
        self, options: dict[str, Any], base: str, result: dict[str, Any], files: list[str]
    ) -> None:
        """Marks the run as finished.

        Args:
            options: as given to begin.
            base: fingerprint of the target of the heads.
            result: the result, for JSON.
            files: names of the model's files and folders, which --restart removes.

        Raises:
            OSError: the folder cannot be written.
        """
        record = {"options": options, "base_fingerprint": base, "finished": True}
        self._write({**record, "result": result, "files": files})
        shutil.rmtree(self.work)

    def _write(self, record: dict[str, Any]) -> None:
        write_json(
            self.path / RECORD,
            {"format": f"lattice_bpd.{self.kind}", "version": _VERSION, **record},
        )

    def _clear(self, record: dict[str, Any]) -> None:
        """Removes an earlier run, its record last."""
        for path in self.work.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        for name in record.get("files", []):
            path = self.path / Path(name).name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for path in (self.log, self.plot, self.path / RECORD):
            path.unlink(missing_ok=True)


def read_record(folder: Path, *kinds: str) -> dict[str, Any] | None:
    """The content of training.json, or None if there is none.

    Args:
        folder: of the run.
        kinds: which the run may be of; without any: HEADS.

    Raises:
        FormatError: it is damaged or of another version.
    """
    path = folder / RECORD
    if not path.is_file():
        return None
    expected = [f"lattice_bpd.{kind}" for kind in kinds or (HEADS,)]
    named = ""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        named = str(content.get("format")) if isinstance(content, dict) else ""
        record = check_header(content, named if named in expected else expected[0], _VERSION)
        if not isinstance(record["options"], dict) or not isinstance(record["finished"], bool):
            raise ValueError("options or finished are of another type")
    except (OSError, ValueError, KeyError, TypeError) as error:
        if named not in expected and named.startswith("lattice_bpd."):
            raise FormatError(
                f"{path}: is of another training, {named!r}; expected {expected[0]!r}; use another "
                "folder"
            ) from error
        raise FormatError(
            f"{path}: damaged, or of another version ({error}); remove the folder, or "
            "use another one"
        ) from error
    return record


def _compare(path: Path, record: dict[str, Any], options: dict[str, Any], base: str | None) -> None:
    earlier = record["options"]
    advice = "give the same options, another folder, or --restart to remove that run"
    for name in sorted({*earlier, *options}):
        if earlier.get(name) != options.get(name):
            raise ValueError(
                f"{path}: holds a run with {name} {earlier.get(name)!r}; requested: "
                f"{options.get(name)!r}; {advice}"
            )
    if record["base_fingerprint"] != base and not record["finished"]:
        raise ValueError(
            f"{path}: holds a run on another base (its weights differ from those of the one "
            f"given); {advice}"
        )


def fingerprint(model: torch.nn.Module) -> str:
    """A 32-digit hash of a module's weights, independent of the dtype that stores them."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().data)
    return digest.hexdigest()[:32]
