"""The training loop: steps, loss log, validation, checkpoints, stop signals.

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
from contextlib import closing
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, BinaryIO

from lattice_bpd._core import FormatError
from lattice_bpd.watcher import Watcher
from lattice_bpd_kim2024.heads.checkpoints import (
    Schedule,
    StepTrainer,
    find_checkpoint,
    load_training,
    save_training,
)
from lattice_bpd_kim2024.heads.run_folder import RunFolder


class StopSignals:
    """Records the first Ctrl-C or SIGTERM; a second one takes effect at once.

    Args:
        patient: ignore a second one. torchrun forwards signals that its processes have already
            received from the terminal, and kills processes that do not stop.

    Inside the `with` block, check `caught` between steps; after it, `deliver` raises the signal
    again. Only the main thread records signals.

    Attributes:
        caught: the signal's number, or None.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self.caught: int | None = None
        self._patient = patient
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._record)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()

    def deliver(self) -> None:
        """Raises the recorded signal again; call it outside the `with` block.

        Raises:
            KeyboardInterrupt: after Ctrl-C, or a signal to another process.
        """
        if self.caught is not None:
            signal.raise_signal(self.caught)
        raise KeyboardInterrupt

    def _record(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.caught = number
        if not self._patient:
            self._restore()

    def _restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)


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


def run_steps(
    trainer: StepTrainer,
    schedule: Schedule,
    folder: RunFolder,
    validate: Callable[[], Mapping[str, Any]] | None,
    watcher: Watcher,
) -> None:
    """Trains to the last step, from the checkpoint in the folder if there is one.

    Args:
        trainer: entered, at step 0.
        schedule: of the log, checkpoints and validation.
        folder: of the log and checkpoints, which process 0 writes.
        validate: scores for the log, called in all processes; None: no validation.
        watcher: called after each step.

    Raises:
        KeyboardInterrupt: Ctrl-C, after a checkpoint was written. SIGTERM keeps its effect.
        ValueError: a loss that is not finite; earlier checkpoints are kept.
        FormatError: a damaged checkpoint.
        ConnectionError: another process has ended.
    """
    processes, report = trainer.processes, trainer.report
    path = processes.run_on_first(lambda: find_checkpoint(folder.work))
    state = None
    if path is None:
        trainer.choose_precision()
    else:
        state = load_training(path, trainer)
    log_path = folder.log if processes.is_first else None
    watcher.begin("training", report.steps - report.step)
    with (
        closing(LossLog(log_path, schedule.log_every, state)) as log,
        StopSignals(patient=processes.world_size > 1) as signals,
    ):
        stopped = False
        while report.step < report.steps and not stopped:
            losses = trainer.take_step()
            last = report.step == report.steps
            log.add(report.step, losses, report.seconds, last)
            watcher.advance(note=_note(trainer.unit, losses))
            if validate is not None and (last or _due(report.step, schedule.validate_every)):
                log.add_validation(report.step, validate())
            stopped = processes.any_true(signals.caught is not None)
            if last or stopped or _due(report.step, schedule.checkpoint_every):
                processes.run_on_first(lambda: str(save_training(folder.work, trainer, log.state)))
    watcher.end()
    if stopped:
        signals.deliver()


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _note(unit: str, losses: dict[int, float]) -> str:
    """The first losses, such as "head 1 3.20, head 2 4.05"."""
    return ", ".join(f"{unit} {number} {loss:.2f}" for number, loss in list(losses.items())[:3])
