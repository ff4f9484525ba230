"""Options and progress of head training, and what is sampled for one step.

A sample depends only on the seed and the step, not on earlier steps or on how the step is split
into forward passes. So a resumed training samples what an uninterrupted one would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lattice_bpd.models.heads import BlockwiseHeads
from lattice_bpd_kim2024.blockwise import BlockwiseLM
from lattice_bpd_kim2024.heads.recipes import OPTIMIZERS


@dataclass(frozen=True)
class TrainOptions:
    """Options of head training.

    Attributes:
        steps: optimizer steps.
        batch_size: sequences per forward pass.
        sequence_length: input tokens per sequence.
        matrix_lr: learning rate of matrices, Muon's unless `optimizer` is "adamw".
        other_lr: AdamW's, for embeddings, norms and biases.
        warmup: steps of linear warm-up; then a cosine down to 5 %.
        head_weights: lambda_1 .. lambda_h; None: all 1.
        head_ramp: fraction of the steps over which lambda_2 .. lambda_h rise from 0. When a model
            is trained from scratch, the far heads can only learn unigrams at first, and their
            gradients would dominate the target's own.
        head_fraction: fraction of positions, sampled anew each step, at which draft heads train.
        train_base: False freezes the target and trains only the draft heads.
        precision: "fp32", "bf16" (autocast), or "auto": the faster one in a short trial.
        max_seconds: time limit; the number of steps and the schedule are reduced to meet it.
            None: no limit, and the result does not depend on the machine's speed.
        seed: seed of the batches and positions.
        accumulate: gradient-accumulation steps.
        one_head: train one randomly sampled head per step; its loss is an unbiased estimate of
            the sum over all heads (Stern et al. 2018, section 6).
        base_rate: factor on the learning rates of the target's weights.
        optimizer: "muon" for matrices with AdamW for the rest, or "adamw" for all.
        dropout: False: the target trains without the dropout of its configuration.
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
    accumulate: int = 1
    one_head: bool = False
    base_rate: float = 1.0
    optimizer: str = "muon"
    dropout: bool = True

    @property
    def sequences_per_step(self) -> int:
        """S: sequences per optimizer step."""
        return self.batch_size * self.accumulate


def check_options(model: BlockwiseLM, options: TrainOptions, where: str) -> list[float]:
    """Validates model and options.

    Args:
        model: the model to train.
        options: see TrainOptions.
        where: the caller's name, for error messages.

    Returns:
        lambda_1 .. lambda_h.

    Raises:
        TypeError: heads that are not BlockwiseHeads.
        ValueError: options out of range.
    """
    if not isinstance(model.heads, BlockwiseHeads):
        raise TypeError(
            f"{where}: the heads are {type(model.heads).__name__}; expected BlockwiseHeads; "
            "train other heads with the code that defines them"
        )
    limit = model.max_positions
    if limit is not None and options.sequence_length > limit:
        raise ValueError(
            f"{where}: sequence_length is {options.sequence_length}, the target has "
            f"positions for {limit}; lower it"
        )
    if options.precision not in ("auto", "fp32", "bf16"):
        raise ValueError(
            f"{where}: precision is {options.precision!r}; expected auto, fp32 or bf16"
        )
    if options.optimizer not in OPTIMIZERS:
        raise ValueError(
            f"{where}: optimizer is {options.optimizer!r}; expected {' or '.join(OPTIMIZERS)}"
        )
    counts = ("steps", "batch_size", "sequence_length", "accumulate")
    if min(getattr(options, name) for name in counts) < 1:
        values = ", ".join(f"{name} {getattr(options, name)}" for name in counts)
        raise ValueError(f"{where}: {values}; expected 1 or more of each")
    if not 0.0 < options.head_fraction <= 1.0:
        raise ValueError(f"{where}: head_fraction is {options.head_fraction}; expected 0 < x <= 1")
    _check_rates(options, where)
    return _check_weights(options.head_weights, model.num_heads, where)


def _check_rates(options: TrainOptions, where: str) -> None:
    for name, limit in (("matrix_lr", math.inf), ("other_lr", math.inf), ("base_rate", math.inf),
                        ("head_ramp", 1.0), ("warmup", math.inf)):  # fmt: skip
        value = getattr(options, name)
        if not 0.0 <= value <= limit:
            upper = "" if limit == math.inf else f" and at most {limit:g}"
            raise ValueError(f"{where}: {name} is {value}; expected 0 or more{upper}")


def _check_weights(weights: Sequence[float] | None, num_heads: int, where: str) -> list[float]:
    if weights is None:
        return [1.0] * num_heads
    if len(weights) != num_heads or not all(0.0 <= weight < math.inf for weight in weights):
        raise ValueError(
            f"{where}: head_weights is {list(weights)}; expected {num_heads} numbers "
            "of 0 or more, one for each head, the target's own first"
        )
    return [float(weight) for weight in weights]


@dataclass(frozen=True)
class HeadText:
    """Token ids for training.

    Attributes:
        token_ids: (N,) int32, possibly a mapped file.
        row_length: None: sequences are taken from anywhere in the text; else the text consists of
            rows of so many tokens, and a sequence is a row.
        first_position: first position of a sequence at which draft heads train: in rows that start
            with a prompt of P tokens, the heads at position P-1 are the first to predict tokens
            after the prompt.
    """

    token_ids: npt.NDArray[np.int32]
    row_length: int | None = None
    first_position: int = 0

    def check(self, length: int, where: str) -> None:
        """Raises ValueError if the text has no sequence of `length` tokens."""
        count = len(self.token_ids)
        if self.token_ids.ndim != 1 or count < length:
            raise ValueError(
                f"{where}: token_ids has shape {self.token_ids.shape}; expected one sequence of "
                f"{length} or more (sequence_length + heads); give more text or lower "
                "sequence_length"
            )
        if self.row_length is not None and (self.row_length != length or count % length):
            raise ValueError(
                f"{where}: rows of {self.row_length} tokens, {count} in all; expected rows of "
                f"{length} (sequence_length + heads)"
            )

    def take(self, starts: Tensor, length: int, device: torch.device) -> Tensor:
        """Sequences (B, length) int64 that start at `starts` (B,)."""
        sequences = self.token_ids[starts.numpy()[:, None] + np.arange(length)]
        return torch.from_numpy(sequences.astype(np.int64)).to(device)

    def num_starts(self, length: int) -> int:
        """The number of possible start offsets."""
        if self.row_length is None:
            return len(self.token_ids) - length + 1
        return len(self.token_ids) // self.row_length


class StepSample(NamedTuple):
    """The random choices of one step.

    Attributes:
        starts: (S,) int64, start offsets of the sequences in the text.
        positions: (N,) int64, sorted, sequence * T + t: where draft heads are evaluated.
        heads: the heads to train, 1..h, sorted.
    """

    starts: Tensor
    positions: Tensor
    heads: tuple[int, ...]


def sample_step(text: HeadText, options: TrainOptions, num_heads: int, step: int) -> StepSample:
    """Samples a step (from 0)."""
    generator = torch.Generator().manual_seed(mix_seed(options.seed, step))
    length, count = options.sequence_length, options.sequences_per_step
    choices = text.num_starts(length + num_heads)
    starts = torch.randint(choices, (count,), generator=generator, device="cpu")
    starts *= text.row_length or 1
    usable = length - text.first_position
    total = count * usable
    chosen = max(1, round(options.head_fraction * total))
    flat = torch.randperm(total, generator=generator, device="cpu")[:chosen].sort().values
    positions = flat // usable * length + text.first_position + flat % usable
    heads = tuple(range(1 if options.train_base else 2, num_heads + 1))
    if options.one_head:
        heads = (heads[int(torch.randint(len(heads), (), generator=generator, device="cpu"))],)
    return StepSample(starts, positions, heads)


def mix_seed(*numbers: int) -> int:
    """A 63-bit seed from several nonnegative numbers."""
    mixed = np.random.SeedSequence([number % (1 << 64) for number in numbers])
    return int(mixed.generate_state(1, np.uint64)[0] >> np.uint64(1))
