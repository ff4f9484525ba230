"""Options of the training of a selector."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class SelectorOptions:
    """Options of `train_selector`.

    Attributes:
        rank: r, of the selector.
        top_k: k, candidates of a slot.
        steps: optimizer steps.
        batch_size: pieces of text per step.
        anchors: blocks of H slots per piece, at different positions.
        sequence_length: longer texts are cut into pieces of so many tokens. None: 256, or as many
            as the target has positions for.
        learning_rate: AdamW's peak rate.
        warmup: steps of linear warm-up; then a cosine down to 5 %.
        gamma: the loss of slot j (from 1) has the weight exp(-(j - 1) / gamma); None: (H + 1) / 2.
        first_position: first position of a text that can be an anchor; P if texts start with a
            prompt of P tokens that the target did not generate.
        validation_fraction: part of the texts that is held out, where no others are given.
        seed: of the initial weights, the held-out texts and the batches.
    """

    rank: int = 64
    top_k: int = 16
    steps: int = 1000
    batch_size: int = 8
    anchors: int = 128
    sequence_length: int | None = None
    learning_rate: float = 0.005
    warmup: int = 30
    gamma: float | None = None
    first_position: int = 1
    validation_fraction: float = 0.05
    seed: int = 0

    def check(self) -> None:
        """Raise ValueError, naming the option, for one out of range."""
        minima = {"warmup": 0, "seed": 0, "sequence_length": 3}
        for field in fields(self):
            value, minimum = getattr(self, field.name), minima.get(field.name, 1)
            if str(field.type).startswith("int") and value is not None and value < minimum:
                raise ValueError(
                    f"train_selector: {field.name} is {value}; expected {minimum} or more"
                )
        for name in ("learning_rate", "gamma"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < float("inf"):
                raise ValueError(f"train_selector: {name} is {value}; expected a number above 0")
        if not 0.0 < self.validation_fraction < 1.0:
            raise ValueError(
                f"train_selector: validation_fraction is {self.validation_fraction}; expected a "
                "number between 0 and 1"
            )
