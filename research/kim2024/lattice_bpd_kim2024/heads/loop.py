"""Trainers of runs in folders: loss log, validation, stop signals.

The log has JSON lines:

{"step": 20, "losses": {"1": 5.1, "2": 6.0}, "seconds": 1.9}            means since the last line
{"step": 100, "validation": {"losses": {..}, "accuracies": {..}}}       or other scores
"""

from __future__ import annotations

import io
import json
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Protocol

from lattice_bpd._core import FormatError
from lattice_bpd.train.trainer import Trainer
from lattice_bpd.watcher import Watcher
from lattice_bpd_kim2024.heads.run_folder import RunFolder

CHECKPOINT = "checkpoint"  # its file, in the folder of an unfinished run


class Schedule(Protocol):
    """What a run does every so many steps."""

    @property
    def log_every(self) -> int:
        """Steps between lines of the loss log."""

    @property
    def checkpoint_every(self) -> int:
        """Steps between checkpoints; 0: only when a signal stops the run."""

    @property
    def validate_every(self) -> int:
        """Steps between validations; 0: at the end only."""


class StopSignals:
    """Records the first Ctrl-C or SIGTERM; a second one takes effect at once.

    Inside the `with` block, check `caught` between steps; after it, `deliver` raises the signal
    again. Only the main thread records signals.

    Attributes:
        caught: the signal's number, or None.
    """

    def __init__(self) -> None:
        self.caught: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def deliver(self) -> None:
        """Raises the recorded signal again; call it outside the `with` block.

        Raises:
            KeyboardInterrupt: after Ctrl-C.
        """
        if self.caught is not None:
            signal.raise_signal(self.caught)
        raise KeyboardInterrupt

    def _record(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.caught = number
        self._restore()

    def _restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)


class LossLog:
    """Writes the log; checkpoints hold its `state`, so that a resumed log misses no line.

    Args:
        path: the file; None: discard all lines.
        every: number of steps between lines.
    """

    def __init__(self, path: Path | None, every: int) -> None:
        self.every, self._path = every, path
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._file: BinaryIO = io.BytesIO()

    def start(self, state: Mapping[str, Any] | None = None) -> None:
        """Opens the file.

        Args:
            state: from a checkpoint; later lines of the file are removed. None: it is replaced.

        Raises:
            OSError: the file cannot be written.
            FormatError: the file is shorter than the state says.
        """
        path, size = self._path, 0
        if path is None:
            return
        if state is not None:
            self._sums, self._counts = dict(state["sums"]), dict(state["counts"])
            size = int(state["bytes"])
            if not path.is_file() or path.stat().st_size < size:
                raise FormatError(
                    f"{path}: the log is shorter than at the last checkpoint ({size:,} bytes); "
                    "put it back, or start over with --restart"
                )
        self._file = path.open("r+b" if state is not None else "wb")
        self._file.truncate(size)
        self._file.seek(size)

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


class RunTrainer(Trainer):
    """A Trainer whose run is in a folder."""

    _log: LossLog
    _signals: StopSignals | None = None  # while a run is in its folder
    _is_stopped = False

    def choose_precision(self) -> None:
        """Sets report.precision, before the first step."""

    def run_in(
        self,
        folder: RunFolder,
        schedule: Schedule,
        validate: Callable[[], Mapping[str, Any]] | None,
        watcher: Watcher,
    ) -> None:
        """Trains to the last step, from the checkpoint in the folder if there is one.

        Args:
            folder: of the log and checkpoint.
            schedule: of the log, checkpoints and validation.
            validate: scores for the log; None: no validation.
            watcher: called after each step.

        Raises:
            KeyboardInterrupt: Ctrl-C, after a checkpoint was written. SIGTERM keeps its effect.
            ValueError: a loss that is not finite; the last checkpoint is kept.
            FormatError: a damaged checkpoint.
        """
        report, checkpoint = self.report, folder.work / CHECKPOINT
        self._log = LossLog(folder.log, schedule.log_every)
        if not checkpoint.is_file():
            self.choose_precision()
            self._log.start()

        def after_step(losses: dict[int, float]) -> None:
            last, every = report.step == report.steps, schedule.validate_every
            self._log.add(report.step, losses, report.seconds, last)
            if validate is not None and (last or (every and report.step % every == 0)):
                self._log.add_validation(report.step, validate())

        with StopSignals() as signals:
            self._signals = signals
            try:
                every = schedule.checkpoint_every
                self.run(checkpoint, watcher, every=every, on_step=after_step)
            finally:
                self._log.close()
        if self._is_stopped:
            signals.deliver()

    def should_stop(self) -> bool:
        """Whether a signal stops the run."""
        if self._signals is not None:
            self._is_stopped = self._signals.caught is not None
        return self._is_stopped

    def state(self) -> dict[str, Any]:
        """See Trainer."""
        return {**super().state(), "log": self._log.state}

    def load(self, path: Path) -> dict[str, Any] | None:
        """See Trainer."""
        try:
            content = super().load(path)
        except FormatError as error:
            raise FormatError(f"{error} (--restart)") from error
        self._log.start(None if content is None else content["log"])
        return content
