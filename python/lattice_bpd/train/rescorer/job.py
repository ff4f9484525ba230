"""The description of the training of a rescorer: RescorerJob."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lattice_bpd.models.small import RESCORER_SIZES, SMALL_SIZES
from lattice_bpd.train.heads.options import TrainOptions
from lattice_bpd.train.text.corpus import Corpus, StrPath

OPTIONS = ("steps", "batch_size", "accumulate", "sequence_length", "matrix_lr", "other_lr",
           "base_rate", "warmup", "precision", "seed")  # fmt: skip
_DEFAULTS = {"steps": 900, "batch_size": 32}
_FINE_TUNING_RATE = 0.02  # that of heads train --recipe finetune
_NOT_RECORDED = ("checkpoint_every", "device", "process_timeout", "restart", "resume", "output",
                 "target", "corpus", "train")  # fmt: skip


@dataclass(frozen=True)
class RescorerJob:
    """A training of a rescorer: target, data, size, options, output folder.

    Attributes:
        target: folder of a causal LM of transformers or of a BlockwiseLM, or a llama2.c .bin file:
            gives vocabulary, tokenizer and number of positions, and generates texts.
        output: folder of the result: new, empty, or of an earlier run.
        inputs: files and folders of training text, see Corpus.
        corpus: further arguments of Corpus. eos_id is appended to every sequence that lacks it;
            the default tokenizer is tokenizer.json of the target.
        size: a name of RESCORER_SIZES or SMALL_SIZES.
        num_layers: instead of the size's.
        hidden_size: instead of the size's.
        initial: folder of a trained rescorer to continue from, for fine-tuning; size, num_layers
            and hidden_size are its own then.
        train: options of TrainOptions by name, of `OPTIONS`. The default sequence_length is 256,
            or fewer if the target has fewer positions; base_rate is 0.02 with `initial`.
        validation: validation files; empty: the end of the training text is held out.
        validation_share: fraction of the text that is held out if validation is empty; 0: none.
        validate_every: steps between validations; 0: at the end only.
        validation_pieces: maximum number of validation sequences.
        own_rows: number of training texts that the target generates; 0: train on the text itself.
        prompt_length: number of prompt tokens of each, taken from the text.
        log_every: steps between lines of the loss log.
        checkpoint_every: steps between checkpoints; 0: only when a signal stops the run.
        device: "auto", "cpu" or "cuda".
        process_timeout: seconds to wait for another process of a parallel run.
        resume: True: fail without an unfinished run; None: resume one if there is one.
        restart: remove an earlier run in `output`.
    """

    target: StrPath
    output: StrPath
    inputs: Sequence[StrPath]
    corpus: dict[str, Any] = field(default_factory=dict)
    size: str = "32M"
    num_layers: int | None = None
    hidden_size: int | None = None
    initial: StrPath | None = None
    train: dict[str, Any] = field(default_factory=dict)
    validation: Sequence[StrPath] = ()
    validation_share: float = 0.02
    validate_every: int = 0
    validation_pieces: int = 64
    own_rows: int = 0
    prompt_length: int = 16
    log_every: int = 10
    checkpoint_every: int = 200
    device: str = "auto"
    process_timeout: float = 1800.0
    resume: bool | None = None
    restart: bool = False

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
        minimum = {"num_layers": 1, "hidden_size": 1, "validation_pieces": 1, "own_rows": 0,
                   "prompt_length": 1, "validate_every": 0, "log_every": 1,
                   "checkpoint_every": 0}  # fmt: skip
        for name, low in minimum.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ValueError(f"{name} is {value}; expected {low} or more")
        if not 0.0 <= self.validation_share < 1.0:
            raise ValueError(
                f"validation_share is {self.validation_share}; expected 0 <= share < 1"
            )
        if self.restart and self.resume:
            raise ValueError("resume and restart are mutually exclusive; give one of them")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device is {self.device!r}; expected auto, cpu or cuda")
        if not 0.0 < self.process_timeout < math.inf:
            raise ValueError(f"process_timeout is {self.process_timeout}; expected seconds above 0")

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
        fields = {
            entry.name: getattr(self, entry.name)
            for entry in dataclasses.fields(self)
            if entry.name not in _NOT_RECORDED
        }
        tokenizing = {name: value for name, value in self.corpus.items() if name != "threads"}
        settings = {name: getattr(options, name) for name in OPTIONS}
        record = {**fields, **tokenizing, **settings, "bytes_of_inputs": corpus.total_bytes}
        return {name: _plain(value) for name, value in record.items()}


def _plain(value: Any) -> Any:
    """A value as JSON restores it."""
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, Path) else value
