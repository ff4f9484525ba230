"""Training of a block drafter on token ids in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel

from lattice_bpd.models.block_drafter.config import BlockDrafterConfig
from lattice_bpd.models.block_drafter.module import BlockDrafter
from lattice_bpd.train.block_drafter.options import BlockTrainOptions
from lattice_bpd.train.block_drafter.texts import make_texts
from lattice_bpd.train.block_drafter.trainer import BlockTrainer
from lattice_bpd.train.block_drafter.validation import measure_drafter
from lattice_bpd.watcher import SilentWatcher, Watcher
from lattice_bpd_kim2024.heads.trainer import seeded

_Texts = Sequence[npt.ArrayLike] | npt.NDArray[np.integer]


def train_block_drafter(
    target: PreTrainedModel,
    texts: _Texts,
    config: BlockDrafterConfig,
    options: BlockTrainOptions | None = None,
    *,
    validation: _Texts | None = None,
    watcher: Watcher | None = None,
) -> BlockDrafter:
    """Trains a new block drafter; the target is unchanged.

    Greedy verification accepts only what the target generates, so texts that it generated train
    the best drafters (`generate_texts`).

    Args:
        target: a causal LM on any device.
        texts: token ids of each text, or the rows (M, T) of an array.
        config: the drafter's sizes; it uses the target's embeddings.
        options: see BlockTrainOptions; None: the defaults.
        validation: texts that the target generated, to measure block efficiency on; it is in the
            note of the watcher's progress.
        watcher: called after each step.

    Returns:
        The drafter, in float32 on the target's device, attached to it, in evaluation mode.

    Raises:
        TypeError: ids that are not integers.
        ValueError: options out of range, texts that do not fit, a config of another target, or
            losses that are not finite.
    """
    where = "train_block_drafter"
    options, watcher = options or BlockTrainOptions(), watcher or SilentWatcher()
    drafter = new_drafter(target, config, options.seed)
    training = make_texts(texts, options.first_position, where)
    held = None if validation is None else make_texts(validation, options.first_position, where)
    if held is not None:
        held.check(drafter.num_slots, drafter.config.vocab_size or 0, f"{where}: validation")
    with BlockTrainer(drafter, target, training, options, where=where) as trainer:
        watcher.begin("training", options.steps)
        score = ""
        for step in range(1, options.steps + 1):
            losses = trainer.take_step()
            every = options.validate_every
            if held is not None and (step == options.steps or (every and step % every == 0)):
                scores = measure_drafter(drafter, target, held, trainer.length)
                score = f", {scores.block_efficiency:.2f} tokens per call"
            watcher.advance(note=f"slot 1 {losses[1]:.2f}{score}")
        watcher.end()
    return drafter


def new_drafter(target: PreTrainedModel, config: BlockDrafterConfig, seed: int) -> BlockDrafter:
    """A drafter with random weights, in float32 on the target's device, attached to it.

    Raises:
        ValueError: a config whose values do not fit together, or of another target.
    """
    with seeded(seed):
        drafter = BlockDrafter(config)
    drafter.to(target.device)
    drafter.attach(target)
    return drafter
