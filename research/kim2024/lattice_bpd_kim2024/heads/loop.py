"""The training loop: steps, loss log, validation, checkpoints, stop signals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from lattice_bpd.watcher import Watcher
from lattice_bpd_kim2024.heads.checkpoints import find_checkpoint, load_training, save_training
from lattice_bpd_kim2024.heads.loss_log import LossLog
from lattice_bpd_kim2024.heads.run_folder import RunFolder
from lattice_bpd_kim2024.heads.step_trainer import Schedule, StepTrainer
from lattice_bpd_kim2024.heads.stop_signals import StopSignals


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
