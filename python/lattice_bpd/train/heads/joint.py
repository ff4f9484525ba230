"""Joint training of a blockwise LM: the target and its draft heads on one pass over the text.

The way from Python, without files; `head_run` adds recipes, checkpoints and processes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from lattice_bpd.models.blockwise import BlockwiseLM
from lattice_bpd.train.heads.batches import HeadText
from lattice_bpd.train.heads.options import TrainOptions, TrainReport
from lattice_bpd.train.heads.trainer import HeadTrainer

__all__ = ["TrainOptions", "TrainReport", "train_blockwise"]

_PACE_STEPS = 20  # how often the time of the rest is foretold


def train_blockwise(
    model: BlockwiseLM,
    token_ids: npt.ArrayLike,
    options: TrainOptions | None = None,
    on_step: Callable[[TrainReport], None] | None = None,
) -> TrainReport:
    """Train the heads, and the target unless it is frozen, in place.

    Args:
        model: on any device; left in evaluation mode.
        token_ids: (N,) ints, the text; longer than sequence_length + h.
        options: see TrainOptions.
        on_step: called after every step.

    Returns:
        TrainReport of the last step.

    Raises:
        TypeError: heads that are not BlockwiseHeads.
        ValueError: a text that is too short, ids outside the vocabulary, options out of range, or
            a loss that is not finite.
    """
    options = options or TrainOptions()
    where = "train_blockwise"
    text = np.asarray(token_ids)
    model.check_token_ids(torch.as_tensor(text.astype(np.int64)), f"{where}: token_ids")
    with HeadTrainer(model, HeadText(text.astype(np.int32)), options, where=where) as trainer:
        trainer.choose_precision()
        report = trainer.report
        while report.step < report.steps:
            trainer.take_step()
            if report.step % _PACE_STEPS == 0:
                report.steps = _fit_steps(report, options)
            if on_step is not None:
                on_step(report)
    return report


def _fit_steps(report: TrainReport, options: TrainOptions) -> int:
    """The steps that max_seconds allows at the rate so far, at most those asked for."""
    if options.max_seconds is None:
        return options.steps
    allowed = int(options.max_seconds * report.steps_per_second)
    return max(report.step, min(options.steps, allowed))
