"""Joint training of a blockwise LM: the target and its draft heads on one pass over the text.

Loss = sum_h lambda_h L_h, L_h the cross entropy of head h against the token h places on (Kim et
al. 2024, appendix C.1). What makes it quick on a CPU, each measured: Muon on the matrices with
AdamW on the rest, bfloat16 where the machine has it in hardware, cross entropy in chunks that
stay in the cache, and draft heads on a random part of the positions only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lattice_bpd.models import BlockwiseHeads, BlockwiseLM
from lattice_bpd.train.losses import block_losses
from lattice_bpd.train.optimizers import build_optimizers, set_rates, take_step

_PACE_STEPS = 20  # how often the time of the rest is foretold


@dataclass(frozen=True)
class TrainOptions:
    """How to train.

    Attributes:
        steps: optimizer steps.
        batch_size: sequences a step.
        sequence_length: input tokens of a sequence.
        matrix_lr: Muon's learning rate, for matrices.
        other_lr: AdamW's, for embeddings, norms and biases.
        warmup: steps of linear warm-up; then a cosine down to 5 %.
        head_weights: lambda_1 .. lambda_h; None: all 1.
        head_ramp: share of the steps over which lambda_2 .. lambda_h rise from 0. Trained from
            scratch with all heads at once, the many far heads, which at first can learn unigrams
            only, drown the target's own gradient.
        head_fraction: share of positions, drawn anew each step, at which draft heads train.
        train_base: False freezes the target and trains the draft heads alone.
        precision: "fp32", "bf16" (autocast), or "auto": the quicker one in a short trial.
        max_seconds: a cap: where the rate shows that `steps` would take longer, fewer are done,
            with the schedule fitted to them. None: no cap, and then the result does not
            depend on the machine's speed.
        seed: of the batches and positions.
    """

    steps: int = 600
    batch_size: int = 16
    sequence_length: int = 256
    matrix_lr: float = 0.02
    other_lr: float = 0.03
    warmup: int = 30
    head_weights: Sequence[float] | None = None
    head_ramp: float = 0.5
    head_fraction: float = 0.125
    train_base: bool = True
    precision: str = "auto"
    max_seconds: float | None = None
    seed: int = 0


@dataclass
class TrainReport:
    """What training did, and what a progress callback sees after each step.

    Attributes:
        step: steps done.
        steps: steps planned.
        losses: L_1 .. L_h of the last step, nats a token, over the positions that were drawn.
        seconds: wall time so far.
        precision: "fp32" or "bf16".
    """

    step: int
    steps: int
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    precision: str = "fp32"

    @property
    def steps_per_second(self) -> float:
        """Mean rate so far."""
        return self.step / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float:
        """Time that the remaining steps will take at the mean rate."""
        return (self.steps - self.step) / self.steps_per_second if self.step else math.inf

    def count_step(self, losses: Tensor, start: float, where: str) -> None:
        """Take note of one more step.

        Args:
            losses: (h,) of the step.
            start: time.perf_counter() when training began.
            where: the trainer's name, for the error message.

        Raises:
            ValueError: a loss that is not finite.
        """
        self.losses = losses.tolist()
        self.step += 1
        self.seconds = time.perf_counter() - start
        if not all(map(math.isfinite, self.losses)):
            raise ValueError(
                f"{where}: losses at step {self.step} are {self.losses}; expected numbers; lower "
                "matrix_lr and other_lr"
            )


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
    text = torch.as_tensor(np.asarray(token_ids, dtype=np.int64))
    weights = _check(model, text, options)
    generator = torch.Generator().manual_seed(options.seed)
    model.train()
    model.base.requires_grad_(options.train_base)
    report = TrainReport(0, options.steps, precision=_choose_precision(model, text, options))
    optimizers = build_optimizers(model, options.matrix_lr, options.other_lr)
    start = time.perf_counter()
    while report.step < report.steps:
        set_rates(optimizers, report.step, report.steps, options.warmup)
        batch = _draw_batch(text, model, options, generator)
        with _autocast(model, report.precision):
            losses = block_losses(model, batch, options.head_fraction, generator)  # (h,)
        take_step(optimizers, (losses * _ramped(weights, report, options)).sum())
        report.count_step(losses, start, "train_blockwise")
        if report.step % _PACE_STEPS == 0:
            report.steps = _fit_steps(report, options)
        if on_step is not None:
            on_step(report)
    model.base.requires_grad_(True)
    model.eval()
    return report


def _ramped(weights: Tensor, report: TrainReport, options: TrainOptions) -> Tensor:
    """(h,) lambdas of this step."""
    if options.head_ramp == 0.0 or not options.train_base:
        return weights
    share = min(1.0, report.step / (options.head_ramp * report.steps))
    return torch.cat([weights[:1], weights[1:] * share])


def _autocast(model: BlockwiseLM, precision: str) -> torch.autocast:
    return torch.autocast(model.device.type, torch.bfloat16, enabled=precision == "bf16")


def _draw_batch(
    text: Tensor, model: BlockwiseLM, options: TrainOptions, generator: torch.Generator
) -> Tensor:
    """(B, T+h) int64 pieces from anywhere in the text, on the model's device."""
    length = options.sequence_length + model.num_heads
    starts = torch.randint(0, len(text) - length + 1, (options.batch_size,), generator=generator)
    return text[starts[:, None] + torch.arange(length)].to(model.device)


def _choose_precision(model: BlockwiseLM, text: Tensor, options: TrainOptions) -> str:
    """The precision asked for; for "auto" the one whose step takes less time here."""
    if options.precision != "auto":
        return options.precision
    generator = torch.Generator().manual_seed(options.seed)
    batch = _draw_batch(text, model, options, generator)
    seconds = {}
    for precision in ("fp32", "bf16"):
        times = []
        for _ in range(3):
            start = time.perf_counter()
            with _autocast(model, precision):
                loss = block_losses(model, batch, options.head_fraction, generator).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            times.append(time.perf_counter() - start)
        seconds[precision] = min(times)
    model.zero_grad(set_to_none=True)
    return min(seconds, key=lambda precision: seconds[precision])


def _fit_steps(report: TrainReport, options: TrainOptions) -> int:
    """The steps that max_seconds allows at the rate so far, at most those asked for."""
    if options.max_seconds is None:
        return options.steps
    allowed = int(options.max_seconds * report.steps_per_second)
    return max(report.step, min(options.steps, allowed))


def _check(model: BlockwiseLM, text: Tensor, options: TrainOptions) -> Tensor:
    """Refuse what cannot be trained; give lambda_1 .. lambda_h as (h,) float32."""
    if not isinstance(model.heads, BlockwiseHeads):
        raise TypeError(
            f"train_blockwise: the heads are {type(model.heads).__name__}; expected BlockwiseHeads;"
            " train others by the code that they come from"
        )
    least = options.sequence_length + model.num_heads
    if text.ndim != 1 or len(text) < least:
        raise ValueError(
            f"train_blockwise: token_ids has shape {tuple(text.shape)}; expected one sequence of "
            f"{least} or more (sequence_length + heads); give more text or lower sequence_length"
        )
    model.check_token_ids(text, "train_blockwise: token_ids")
    limit = model.max_positions
    if limit is not None and options.sequence_length > limit:
        raise ValueError(
            f"train_blockwise: sequence_length is {options.sequence_length}, the target has "
            f"positions for {limit}; lower it"
        )
    if options.precision not in ("auto", "fp32", "bf16"):
        raise ValueError(
            f"train_blockwise: precision is {options.precision!r}; expected auto, fp32 or bf16"
        )
    if min(options.steps, options.batch_size, options.sequence_length) < 1:
        raise ValueError(
            f"train_blockwise: steps {options.steps}, batch_size {options.batch_size}, "
            f"sequence_length {options.sequence_length}; expected 1 or more of each"
        )
    if not 0.0 < options.head_fraction <= 1.0:
        raise ValueError(
            f"train_blockwise: head_fraction is {options.head_fraction}; expected 0 < x <= 1"
        )
    weights = options.head_weights
    if weights is None:
        return torch.ones(model.num_heads, device=model.device)
    if len(weights) != model.num_heads or min(weights) < 0:
        raise ValueError(
            f"train_blockwise: head_weights is {list(weights)}; expected {model.num_heads} numbers "
            "of 0 or more, one for each head, the target's own first"
        )
    return torch.tensor(weights, device=model.device)
