"""Training a low-rank selector on frozen heads or a frozen block drafter, on texts in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy.typing as npt
from transformers import PreTrainedModel

from lattice_bpd.models.block_drafter.selector import CandidateSelector
from lattice_bpd.train.selector.options import SelectorOptions
from lattice_bpd.train.selector.slots import AnyHeads
from lattice_bpd.train.selector.trainer import SelectorTrainer
from lattice_bpd.train.selector.validation import SelectorScores
from lattice_bpd.watcher import SilentWatcher, Watcher


@dataclass(frozen=True)
class TrainedSelector:
    """What `train_selector` returns.

    Attributes:
        selector: on the target's device, in evaluation mode.
        losses: of each step, nats per slot.
        scores: on the held-out texts.
    """

    selector: CandidateSelector
    losses: list[float]
    scores: SelectorScores


def train_selector(
    target: PreTrainedModel,
    heads: AnyHeads,
    texts: Sequence[npt.ArrayLike],
    options: SelectorOptions | None = None,
    watcher: Watcher | None = None,
) -> TrainedSelector:
    """Trains transition scores; target and heads are unchanged.

    The result is used by `BlockwiseLM(target, heads=heads, selector=selector)`, which saves it with
    the heads, or for a block drafter by `drafter.use_selector(selector)`.

    Args:
        target: a causal LM, on any device.
        heads: BlockwiseHeads, Medusa's or another head source, or a BlockDrafter, on that device.
        texts: token ids (T,) each, two texts or more; best are texts that the target generated.
        options: see SelectorOptions.
        watcher: receives the progress.

    Raises:
        TypeError: heads of another kind.
        ValueError: texts or options out of range, or a loss that is not finite.
    """
    options, watcher = options or SelectorOptions(), watcher or SilentWatcher()
    losses = []
    with SelectorTrainer(target, heads, texts, options) as trainer:
        watcher.begin("training the selector", options.steps)
        for _ in range(options.steps):
            trainer.take_step()
            losses += trainer.report.losses
            watcher.advance(note=f"loss {losses[-1]:.3f}")
        watcher.end()
        scores = trainer.validate(watcher)
    return TrainedSelector(trainer.selector, losses, scores)
