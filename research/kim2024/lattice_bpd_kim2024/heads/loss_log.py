"""The log of training losses and validation scores, as JSON lines.

{"step": 20, "losses": {"1": 5.1, "2": 6.0}, "seconds": 1.9}            means since the last line
{"step": 100, "validation": {"losses": {..}, "accuracies": {..}}}       or other scores
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from lattice_bpd._core import FormatError


class LossLog:
    """Writes the log; checkpoints hold its `state`, so that a resumed log misses no line.

    Args:
        path: the file, replaced unless a state is given; None: discard all lines.
        every: number of steps between lines.
        state: state from a checkpoint; later lines of the file are removed.

    Raises:
        OSError: the file cannot be written.
        FormatError: the file is shorter than the state says.
    """

    def __init__(
        self, path: Path | None, every: int, state: Mapping[str, Any] | None = None
    ) -> None:
        self.every = every
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._file: BinaryIO = io.BytesIO() if path is None else self._open(path, state)

    def _open(self, path: Path, state: Mapping[str, Any] | None) -> BinaryIO:
        size = 0
        if state is not None:
            self._sums, self._counts = dict(state["sums"]), dict(state["counts"])
            size = int(state["bytes"])
            if not path.is_file() or path.stat().st_size < size:
                raise FormatError(
                    f"{path}: the log is shorter than at the last checkpoint ({size:,} bytes); "
                    "put it back, or start over with --restart"
                )
        file = path.open("r+b" if state is not None else "wb")
        file.truncate(size)
        file.seek(size)
        return file

    @property
    def state(self) -> dict[str, Any]:
        """The state for a checkpoint, as JSON."""
        return {"sums": self._sums, "counts": self._counts, "bytes": self._file.tell()}

    def add(self, step: int, losses: Mapping[int, float], seconds: float, last: bool) -> None:
        """Adds the losses of a step (from 1); writes a line every `every` steps and at the last."""
        for head, loss in losses.items():
            self._sums[str(head)] = self._sums.get(str(head), 0.0) + loss
            self._counts[str(head)] = self._counts.get(str(head), 0) + 1
        if step % self.every == 0 or last:
            heads = sorted(self._sums, key=int)
            means = {head: self._sums[head] / self._counts[head] for head in heads}
            self._write({"step": step, "losses": means, "seconds": round(seconds, 3)})
            self._sums, self._counts = {}, {}

    def add_validation(self, step: int, scores: Mapping[str, Any]) -> None:
        """Writes a line with the scores of a validation."""
        self._write({"step": step, "validation": dict(scores)})

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log.

    Raises:
        OSError: it cannot be read.
        FormatError: a line that is not a JSON object.
    """
    lines = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            line = json.loads(text)
            if not isinstance(line, dict) or "step" not in line:
                raise ValueError("no step in it")
        except ValueError as error:
            raise FormatError(
                f"{path}, line {number}: not a line of a loss log ({error})"
            ) from error
        lines.append(line)
    return lines
