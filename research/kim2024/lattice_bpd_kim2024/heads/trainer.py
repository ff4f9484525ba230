"""The trainer of all recipes: samples a step, accumulates gradients, updates the weights.

Its measured optimizations for CPUs: Muon on matrices and AdamW elsewhere, bfloat16 if the hardware
supports it, cross entropy in chunks that fit the last-level cache, and draft heads evaluated at a
random subset of positions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from lattice_bpd.train.trainer import TrainReport
from lattice_bpd_kim2024.blockwise import BlockwiseLM
from lattice_bpd_kim2024.heads.loop import RunTrainer
from lattice_bpd_kim2024.heads.losses import LossPart, add_gradients
from lattice_bpd_kim2024.heads.optimizers import build_optimizers
from lattice_bpd_kim2024.heads.options import (
    HeadText,
    StepSample,
    TrainOptions,
    check_options,
    mix_seed,
    sample_step,
)


class HeadTrainer(RunTrainer):
    """Trains the heads of a model in place, and its target unless that is frozen.

    Use it as a context manager: inside, the model is in training mode and torch's random numbers
    (dropout) follow the options' seed; both are restored afterwards.

    Args:
        model: on any device.
        text: training text.
        options: see TrainOptions; the caller handles max_seconds.
        where: the caller's name, for error messages.

    Attributes:
        report: progress.
        optimizers: Muon, AdamW or both.

    Raises:
        TypeError: heads that are not BlockwiseHeads.
        ValueError: text that is too short, ids outside the vocabulary, options out of range.
    """

    def __init__(
        self,
        model: BlockwiseLM,
        text: HeadText,
        options: TrainOptions,
        where: str = "HeadTrainer",
    ) -> None:
        self._lambdas = check_options(model, options, where)
        text.check(options.sequence_length + model.num_heads, where)
        self.model, self.text, self.options = model, text, options
        model.base.requires_grad_(options.train_base)
        optimizers = build_optimizers(
            model, options.matrix_lr, options.other_lr, options.base_rate, options.optimizer
        )
        chosen = {
            id(w) for one in optimizers for group in one.param_groups for w in group["params"]
        }
        weights = {name: w for name, w in model.named_parameters() if id(w) in chosen}
        super().__init__(
            weights, optimizers, TrainReport(0, options.steps), self._backward, options.warmup,
            where=where,
        )  # fmt: skip

    def __enter__(self) -> HeadTrainer:
        self._fork = torch.random.fork_rng(_cuda_devices(self.model))
        self._fork.__enter__()
        self.model.train()
        self.model.base.train(self.options.train_base and self.options.dropout)
        self.model.base.requires_grad_(self.options.train_base)
        return self

    def __exit__(self, *error: object) -> None:
        self.model.base.requires_grad_(True)
        self.model.zero_grad(set_to_none=True)
        self.model.eval()
        self._fork.__exit__(None, None, None)

    def choose_precision(self) -> None:
        """Sets report.precision; "auto" selects the faster one in a short trial."""
        precision = self.options.precision
        if precision == "auto":
            seconds = [self._time_pass(name) for name in ("fp32", "bf16")]
            precision = ["fp32", "bf16"][seconds.index(min(seconds))]
        self.report.precision = precision

    def take_step(self) -> dict[int, float]:
        """Runs one step.

        Returns:
            The loss of each trained head, 1..h, in nats per token.

        Raises:
            ValueError: a loss that is not finite.
        """
        first = 1 if self.options.train_base else 2
        known = self.report.losses or [math.nan] * (self.model.num_heads + 1 - first)
        losses = super().take_step()
        self.report.losses = [losses.get(first + i, loss) for i, loss in enumerate(known)]
        return losses

    def _backward(self, step: int) -> Mapping[int, float]:
        sample = self.sample(step)
        sums = self.add_gradients(sample)
        for weight in self.weights.values():  # of heads that the step leaves out
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        counts = (
            self.options.sequences_per_step * self.options.sequence_length, len(sample.positions)
        )  # fmt: skip
        return {head: float(sums[head - 1]) / counts[head > 1] for head in sample.heads}

    def sample(self, step: int) -> StepSample:
        """The sequences, positions and heads of a step (from 0)."""
        return sample_step(self.text, self.options, self.model.num_heads, step)

    def add_gradients(self, sample: StepSample) -> Tensor:
        """Adds the gradients of a step to .grad.

        Returns:
            (h,) float32: each head's losses summed over the positions.
        """
        options, device = self.options, self.model.device
        share = options.batch_size
        row_weights = self._row_weights(sample).to(device)
        sums = torch.zeros(self.model.num_heads, device=device)
        for block in range(options.accumulate):
            torch.manual_seed(mix_seed(options.seed, self.report.step, block))
            starts = sample.starts[block * share : (block + 1) * share]
            pieces = self.text.take(starts, self._piece_length, device)
            low, high = (share * options.sequence_length * b for b in (block, block + 1))
            inside = sample.positions[(sample.positions >= low) & (sample.positions < high)] - low
            part = LossPart(pieces, inside.to(device), row_weights, sample.heads)
            sums += add_gradients(self.model, part, self.report.precision)
        return sums

    @property
    def _piece_length(self) -> int:
        return self.options.sequence_length + self.model.num_heads

    def _row_weights(self, sample: StepSample) -> Tensor:
        """(h,) weight of one position's loss: lambda_h / positions, times h / trained heads.

        With this factor, one random head is an unbiased estimate of the sum over all.
        """
        options = self.options
        share = 1.0
        if options.head_ramp > 0.0 and options.train_base:
            share = min(1.0, self.report.step / (options.head_ramp * self.report.steps))
        lambdas = torch.tensor(self._lambdas, device="cpu")
        lambdas[1:] *= share / len(sample.positions)
        lambdas[0] /= options.sequences_per_step * options.sequence_length
        if options.one_head:
            lambdas *= self.model.num_heads - (0 if options.train_base else 1)
        return lambdas

    def _time_pass(self, precision: str) -> float:
        """Seconds of the fastest of three forward and backward passes."""
        sample = self.sample(0)
        sample = sample._replace(heads=tuple(range(1, self.model.num_heads + 1)))
        before, self.report.precision = self.report.precision, precision
        times = []
        for _ in range(3):
            start = time.perf_counter()
            self.add_gradients(sample)
            times.append(time.perf_counter() - start)
        self.report.precision = before
        self.model.zero_grad(set_to_none=True)
        return min(times)


def _cuda_devices(model: BlockwiseLM) -> Sequence[torch.device]:
    return [model.device] if model.device.type == "cuda" else []


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's CPU random numbers inside the block and restores them afterwards."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        yield
