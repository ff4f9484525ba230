"""Options of the training of a block drafter."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class BlockTrainOptions:
    """Options of the training of a block drafter.

    Attributes:
        steps: optimizer steps.
        batch_size: pieces of text per step.
        sequence_length: tokens per piece; longer texts are read in pieces. None: 256, or as many
            as the target has positions for.
        anchors: blocks per piece.
        first_position: first position of a text that is an anchor: P - 1 if texts start with a
            prompt of P tokens that the target did not generate.
        gamma: the loss of slot j (from 1) has the weight exp(-(j - 1) / gamma), divided by the sum
            of all weights: a wrong token makes the later ones of the block useless.
        distillation: share of the loss that is the cross entropy with the target's distribution,
            0..1; the others are that with the text. Equals training on the KL divergence.
        matrix_lr: Muon's peak learning rate, for matrices.
        other_lr: AdamW's, for norms.
        warmup: steps of linear warm-up; then a cosine down to 5 %.
        clip: largest norm of the gradient; 0: none.
        precision: "fp32" or "bf16" (autocast).
        seed: seed of the weights, pieces and anchors.
        validate_every: steps between validations; 0: at the end only.
    """

    steps: int = 3000
    batch_size: int = 8
    sequence_length: int | None = None
    anchors: int = 32
    first_position: int = 0
    gamma: float = 4.0
    distillation: float = 0.0
    matrix_lr: float = 0.02
    other_lr: float = 0.01
    warmup: int = 100
    clip: float = 1.0
    precision: str = "fp32"
    seed: int = 0
    validate_every: int = 0

    def check(self) -> None:
        """Raise ValueError, naming the option, for values out of range."""
        for name in ("steps", "batch_size", "anchors"):
            _check(name, getattr(self, name), 1)
        for name in ("first_position", "warmup", "clip", "matrix_lr", "other_lr", "seed"):
            _check(name, getattr(self, name), 0)
        _check("validate_every", self.validate_every, 0)
        if self.sequence_length is not None:
            _check("sequence_length", self.sequence_length, 2)
        if not self.gamma > 0.0:
            raise ValueError(f"gamma is {self.gamma}; expected a number above 0")
        if not 0.0 <= self.distillation <= 1.0:
            raise ValueError(f"distillation is {self.distillation}; expected 0..1")
        if self.precision not in ("fp32", "bf16"):
            raise ValueError(f"precision is {self.precision!r}; expected fp32 or bf16")

    def slot_weights(self, num_slots: int) -> list[float]:
        """The weights of the slots' losses; they sum to 1."""
        weights = [math.exp(-slot / self.gamma) for slot in range(num_slots)]
        return [weight / sum(weights) for weight in weights]


def _check(name: str, value: float, minimum: int) -> None:
    if not minimum <= value < math.inf:
        raise ValueError(f"{name} is {value}; expected {minimum} or more")
