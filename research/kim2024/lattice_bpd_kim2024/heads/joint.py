"""Joint training of a target and its draft heads on token ids in memory.

`heads.run` adds recipes, checkpoints and data parallelism.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy.typing as npt

from lattice_bpd.token_ids import to_token_ids
from lattice_bpd.train.trainer import TrainReport
from lattice_bpd_kim2024.blockwise import BlockwiseLM
from lattice_bpd_kim2024.heads.options import HeadText, TrainOptions
from lattice_bpd_kim2024.heads.trainer import HeadTrainer

__all__ = ["TrainOptions", "TrainReport", "train_blockwise"]

_RATE_INTERVAL = 20  # steps between estimates of the remaining time


def train_blockwise(
    model: BlockwiseLM,
    token_ids: npt.ArrayLike,
    options: TrainOptions | None = None,
    on_step: Callable[[TrainReport], None] | None = None,
) -> TrainReport:
    """Trains the heads in place, and the target unless it is frozen.

    Args:
        model: on any device; left in evaluation mode.
        token_ids: (N,) ints, training text; longer than sequence_length + h.
        options: see TrainOptions.
        on_step: called after every step.

    Returns:
        The report of the last step.

    Raises:
        TypeError: heads that are not BlockwiseHeads.
        ValueError: a text that is too short, ids outside the vocabulary, options out of range, or
            a loss that is not finite.
    """
    options = options or TrainOptions()
    where = "train_blockwise"
    text = to_token_ids(token_ids, f"{where}: token_ids", model.vocab_size)
    with HeadTrainer(model, HeadText(text), options, where=where) as trainer:
        trainer.choose_precision()
        report = trainer.report

        def after_step(_: object) -> None:
            if report.step % _RATE_INTERVAL == 0:
                report.steps = _fit_steps(report, options)
            if on_step is not None:
                on_step(report)

        trainer.run(on_step=after_step)
    return report


def _fit_steps(report: TrainReport, options: TrainOptions) -> int:
    """The number of steps that max_seconds allows at the current rate."""
    if options.max_seconds is None:
        return options.steps
    allowed = int(options.max_seconds * report.steps_per_second)
    return max(report.step, min(options.steps, allowed))
