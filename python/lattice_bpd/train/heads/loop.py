"""The training loop: steps, loss log, validation, checkpoints, stop signals."""

from __future__ import annotations

from contextlib import closing

from lattice_bpd.train.heads.batches import HeadText
from lattice_bpd.train.heads.checkpoints import find_checkpoint, load_training, save_training
from lattice_bpd.train.heads.job import HeadJob
from lattice_bpd.train.heads.loss_log import LossLog
from lattice_bpd.train.heads.run_folder import RunFolder
from lattice_bpd.train.heads.stop_signals import StopSignals
from lattice_bpd.train.heads.trainer import HeadTrainer
from lattice_bpd.train.heads.validation import measure_heads
from lattice_bpd.watcher import Watcher


def run_steps(
    trainer: HeadTrainer,
    job: HeadJob,
    folder: RunFolder,
    validation: HeadText | None,
    watcher: Watcher,
) -> None:
    """Trains to the last step, from the checkpoint in the folder if there is one.

    Args:
        trainer: entered, at step 0.
        job: for log_every, checkpoint_every, validate_every and validation_pieces.
        folder: of the log and checkpoints, which process 0 writes.
        validation: validation text; None: no validation.
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
        closing(LossLog(log_path, job.log_every, state)) as log,
        StopSignals(patient=processes.world_size > 1) as signals,
    ):
        stopped = False
        while report.step < report.steps and not stopped:
            losses = trainer.take_step()
            last = report.step == report.steps
            log.add(report.step, losses, report.seconds, last)
            watcher.advance(note=_note(losses))
            if last or _due(report.step, job.validate_every):
                _validate(trainer, job, validation, log)
            stopped = processes.any_true(signals.caught is not None)
            if last or stopped or _due(report.step, job.checkpoint_every):
                processes.run_on_first(lambda: str(save_training(folder.work, trainer, log.state)))
    watcher.end()
    if stopped:
        signals.deliver()


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _note(losses: dict[int, float]) -> str:
    """The losses of the first heads, such as "head 1 3.20, head 2 4.05"."""
    return ", ".join(f"head {head} {loss:.2f}" for head, loss in list(losses.items())[:3])


def _validate(
    trainer: HeadTrainer, job: HeadJob, validation: HeadText | None, log: LossLog
) -> None:
    if validation is None:
        return
    scores = measure_heads(
        trainer.model,
        validation,
        trainer.options.sequence_length,
        max_pieces=job.validation_pieces,
        precision=trainer.report.precision,
        processes=trainer.processes,
    )
    log.add_validation(trainer.report.step, scores)
