"""What one step of a trainer of heads looks at, drawn from the seed and the number of the step.

A step's random numbers depend on nothing else: not on earlier steps, nor on how the step is split
into passes and processes. So a resumed training draws what an uninterrupted one would have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lattice_bpd.train.heads.options import TrainOptions


@dataclass(frozen=True)
class HeadText:
    """Token ids to learn from.

    Attributes:
        token_ids: (N,) int32, possibly a mapped file.
        row_length: None: pieces are taken from anywhere in the text; else the text is rows of this
            many tokens, and a piece is a row.
        first_position: earliest position of a piece at which draft heads train: in rows that begin
            with a prompt of P tokens, the heads of position P-1 are the first that guess tokens
            behind it.
    """

    token_ids: npt.NDArray[np.int32]
    row_length: int | None = None
    first_position: int = 0

    def check(self, length: int, where: str) -> None:
        """Raise ValueError unless a piece of `length` tokens can be taken."""
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
        """Pieces (B, length) int64 that begin at starts (B,)."""
        pieces = self.token_ids[starts.numpy()[:, None] + np.arange(length)]
        return torch.as_tensor(pieces.astype(np.int64)).to(device)

    def num_starts(self, length: int) -> int:
        """Places where a piece may begin."""
        if self.row_length is None:
            return len(self.token_ids) - length + 1
        return len(self.token_ids) // self.row_length


class StepDraw(NamedTuple):
    """All that a step looks at.

    Attributes:
        starts: (S,) int64, where the pieces begin in the text.
        positions: (N,) int64 in order, piece * T + t: where draft heads are evaluated.
        heads: the heads that train, 1..h in order.
    """

    starts: Tensor
    positions: Tensor
    heads: tuple[int, ...]


def draw_step(text: HeadText, options: TrainOptions, num_heads: int, step: int) -> StepDraw:
    """Draw a step (from 0)."""
    generator = torch.Generator().manual_seed(mix_seed(options.seed, step))
    length, pieces = options.sequence_length, options.pieces_per_step
    choices = text.num_starts(length + num_heads)
    starts = torch.randint(choices, (pieces,), generator=generator) * (text.row_length or 1)
    usable = length - text.first_position
    count = max(1, round(options.head_fraction * pieces * usable))
    drawn = torch.randperm(pieces * usable, generator=generator)[:count].sort().values
    positions = drawn // usable * length + text.first_position + drawn % usable
    heads = tuple(range(1 if options.train_base else 2, num_heads + 1))
    if options.one_head:
        heads = (heads[int(torch.randint(len(heads), (), generator=generator))],)
    return StepDraw(starts, positions, heads)


def mix_seed(*numbers: int) -> int:
    """One seed of 63 bits from several numbers of 0 or more."""
    mixed = np.random.SeedSequence([number % (1 << 64) for number in numbers])
    return int(mixed.generate_state(1, np.uint64)[0] >> np.uint64(1))
