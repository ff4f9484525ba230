"""The description of the training of a rescorer: RescorerJob."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lattice_bpd.train.text.corpus import Corpus, StrPath
from lattice_bpd_kim2024.heads.options import TrainOptions
from lattice_bpd_kim2024.heads.text_job import FrozenTargetJob
from lattice_bpd_kim2024.small_models import RESCORER_SIZES, SMALL_SIZES

OPTIONS = ("steps", "batch_size", "accumulate", "sequence_length", "matrix_lr", "other_lr",
           "base_rate", "warmup", "precision", "seed")  # fmt: skip
_DEFAULTS = {"steps": 900, "batch_size": 32}
_FINE_TUNING_RATE = 0.02  # that of heads train --recipe finetune


@dataclass(frozen=True)
class RescorerJob(FrozenTargetJob):
    """A training of a rescorer: target, data, size, options, output folder.

    Attributes (see FrozenTargetJob for the others):
        own_rows: default 0; otherwise the target generates the texts.
        size: a name of RESCORER_SIZES or SMALL_SIZES.
        num_layers: instead of the size's.
        hidden_size: instead of the size's.
        initial: folder of a trained rescorer to continue from, for fine-tuning; size, num_layers
            and hidden_size are its own then.
        train: options of TrainOptions by name, of `OPTIONS`. The default sequence_length is 256,
            or fewer if the target has fewer positions; base_rate is 0.02 with `initial`.
        validate_every: steps between validations; 0: at the end only.
    """

    own_rows: int = field(default=0, kw_only=True)
    size: str = "32M"
    num_layers: int | None = None
    hidden_size: int | None = None
    initial: StrPath | None = None
    train: dict[str, Any] = field(default_factory=dict)
    validate_every: int = 0

    def check(self) -> None:
        """Validates the options before anything is read.

        Raises:
            ValueError: the message names the option.
        """
        if self.size not in (names := [*SMALL_SIZES, *RESCORER_SIZES]):
            raise ValueError(f"size is {self.size!r}; expected one of {', '.join(names)}")
        if self.initial is not None and (self.num_layers or self.hidden_size):
            raise ValueError(
                "num_layers and hidden_size are for new rescorers; leave them out, or initial"
            )
        for name in sorted(set(self.train) - set(OPTIONS)):
            raise ValueError(f"train has {name!r}; expected {', '.join(OPTIONS)}")
        super().check()
        for name in ("num_layers", "hidden_size", "validate_every"):
            if getattr(self, name) is not None:
                self.check_minimum(name, 0 if name == "validate_every" else 1)
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device is {self.device!r}; expected auto, cpu or cuda")

    def train_options(self, max_positions: int | None) -> TrainOptions:
        """The options of the training.

        Args:
            max_positions: of the target and the rescorer; None: no limit.

        Raises:
            ValueError: a sequence_length that the target cannot generate.
        """
        # The target reads all but the last token of a generated text, the label included.
        limit = (max_positions or 1 << 30) - (1 if self.own_rows else 0)
        given = {name: value for name, value in self.train.items() if value is not None}
        length = given.get("sequence_length") or min(256, limit)
        if self.own_rows and not self.prompt_length <= length <= limit:
            raise ValueError(
                f"sequence_length is {length}; expected {self.prompt_length} (prompt_length) to "
                f"{limit} (the target's positions less 1)"
            )
        rate = 1.0 if self.initial is None else _FINE_TUNING_RATE
        return TrainOptions(
            **{**_DEFAULTS, "base_rate": rate, **given, "sequence_length": length},
            head_weights=(1.0, 0.0),
        )

    def record(self, corpus: Corpus, options: TrainOptions) -> dict[str, Any]:
        """Everything that the result depends on, for JSON; it must match to resume a run."""
        return self.describe(corpus, {name: getattr(options, name) for name in OPTIONS})
