"""Training text, and the sequences, positions and heads sampled for one step.

A sample depends only on the seed and the step, not on earlier steps or on how the step is split
into forward passes and processes. So a resumed training samples what an uninterrupted one would.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lattice_bpd_kim2024.heads.options import TrainOptions


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
        return torch.as_tensor(sequences.astype(np.int64)).to(device)

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
    starts = torch.randint(choices, (count,), generator=generator) * (text.row_length or 1)
    usable = length - text.first_position
    total = count * usable
    chosen = max(1, round(options.head_fraction * total))
    flat = torch.randperm(total, generator=generator)[:chosen].sort().values
    positions = flat // usable * length + text.first_position + flat % usable
    heads = tuple(range(1 if options.train_base else 2, num_heads + 1))
    if options.one_head:
        heads = (heads[int(torch.randint(len(heads), (), generator=generator))],)
    return StepSample(starts, positions, heads)


def mix_seed(*numbers: int) -> int:
    """A 63-bit seed from several nonnegative numbers."""
    mixed = np.random.SeedSequence([number % (1 << 64) for number in numbers])
    return int(mixed.generate_state(1, np.uint64)[0] >> np.uint64(1))
