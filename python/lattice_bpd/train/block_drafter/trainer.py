"""The trainer of block drafters: samples a step, computes gradients, updates the weights."""

from __future__ import annotations

import time

import torch
from torch import nn
from transformers import PreTrainedModel

from lattice_bpd.models.block_drafter.module import BlockDrafter
from lattice_bpd.models.lm_call import find_max_positions
from lattice_bpd.train.block_drafter.losses import add_gradients
from lattice_bpd.train.block_drafter.options import BlockTrainOptions
from lattice_bpd.train.block_drafter.texts import BlockTexts, Pieces
from lattice_bpd.train.optimizers import build_optimizers, set_rates, step_all
from lattice_bpd_kim2024.heads.options import TrainReport, check_finite
from lattice_bpd_kim2024.heads.parallel import ALONE, Processes

_LENGTH = 256


class BlockTrainer:
    """Trains a block drafter in place; the target is unchanged.

    Use it as a context manager: inside, the drafter is in training mode and the target in
    evaluation mode, without gradients; afterwards both are in evaluation mode.

    Args:
        drafter: attached to the target, without embeddings of its own.
        target: on any device.
        texts: training texts.
        options: see BlockTrainOptions.
        processes: the data-parallel processes, which pass the same arguments; batch_size must be
            a multiple of their number.
        where: the caller's name, for error messages.

    Attributes:
        length: the most tokens of a piece.
        report: progress.
        optimizers: Muon and AdamW.
        unit: what has a loss of its own.

    Raises:
        ValueError: options out of range, texts that do not fit, or a drafter with embeddings.
    """

    unit = "slot"

    def __init__(
        self,
        drafter: BlockDrafter,
        target: PreTrainedModel,
        texts: BlockTexts,
        options: BlockTrainOptions,
        processes: Processes = ALONE,
        where: str = "BlockTrainer",
    ) -> None:
        options.check()
        config = drafter.config
        if config.has_own_embedding or config.has_own_output:
            raise ValueError(
                f"{where}: the drafter has embeddings of its own; expected one that uses the "
                "target's (has_own_embedding and has_own_output False)"
            )
        if options.batch_size % processes.world_size:
            raise ValueError(
                f"{where}: batch_size is {options.batch_size}; expected a multiple of the "
                f"{processes.world_size} processes"
            )
        self.length = piece_length(target, options.sequence_length)
        if self.length < texts.first_position + drafter.num_slots + 1:
            raise ValueError(
                f"{where}: sequence_length is {self.length}; expected "
                f"{texts.first_position + drafter.num_slots + 1} or more (first_position + "
                f"{drafter.num_slots} slots + 1)"
            )
        texts.check(drafter.num_slots, config.vocab_size or 0, where)
        self.drafter, self.target, self.texts = drafter, target, texts
        self.options, self.processes, self._where = options, processes, where
        self._weights = torch.tensor(options.slot_weights(drafter.num_slots)).to(target.device)
        self._seconds_before = self._start = 0.0
        self.report = TrainReport(0, options.steps, precision=options.precision)
        self.optimizers = build_optimizers(drafter, options.matrix_lr, options.other_lr)

    def __enter__(self) -> BlockTrainer:
        self._trained = [w for w in self.target.parameters() if w.requires_grad]
        self.target.train(False).requires_grad_(False)
        self.drafter.train()
        self._seconds_before = self.report.seconds
        self._start = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        for weight in self._trained:
            weight.requires_grad_(True)
        self.drafter.zero_grad(set_to_none=True)
        self.drafter.eval()

    def trained_weights(self) -> dict[str, nn.Parameter]:
        """The drafter's weights, by name."""
        return dict(self.drafter.named_parameters())

    def choose_precision(self) -> None:
        """Sets report.precision."""
        self.report.precision = self.options.precision

    def take_step(self) -> dict[int, float]:
        """Runs one step.

        Returns:
            Cross entropy with the text of each slot, 1..H, in nats per token.

        Raises:
            ValueError: a loss that is not finite.
            ConnectionError: another process has ended.
        """
        report, options = self.report, self.options
        set_rates(self.optimizers, report.step, report.steps, options.warmup)
        blocks = options.batch_size * options.anchors
        bf16 = report.precision == "bf16"
        with torch.autocast(self.target.device.type, torch.bfloat16, enabled=bf16):
            sums = add_gradients(
                self.drafter, self.target, self._sample(), self._weights / blocks,
                options.distillation,
            )  # fmt: skip
        weights = list(self.drafter.parameters())
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        self.processes.all_reduce([*gradients, sums])
        losses = (sums / blocks).tolist()
        check_finite(losses, report.step + 1, self._where)
        if options.clip > 0.0:
            nn.utils.clip_grad_norm_(weights, options.clip)
        step_all(self.optimizers)
        report.losses = losses
        report.step += 1
        report.seconds = self._seconds_before + time.perf_counter() - self._start
        return dict(enumerate(losses, 1))

    def _sample(self) -> Pieces:
        """This process's part of the next step."""
        options, rank = self.options, self.processes.rank
        pieces = self.texts.sample(
            self.length, options.batch_size, options.anchors, self.drafter.num_slots,
            options.seed, self.report.step,
        )  # fmt: skip
        share = options.batch_size // self.processes.world_size
        rows = slice(rank * share, (rank + 1) * share)
        return Pieces(*(part[rows].to(self.target.device) for part in pieces))


def piece_length(target: PreTrainedModel, sequence_length: int | None) -> int:
    """The most tokens of a piece: sequence_length, or 256 unless the target has fewer positions.

    Raises:
        ValueError: more than the target has positions for.
    """
    limit = find_max_positions(target.config.get_text_config()) or 1 << 30
    length = sequence_length or min(_LENGTH, limit)
    if length > limit:
        raise ValueError(
            f"sequence_length is {length}, the target has positions for {limit}; lower it"
        )
    return length
