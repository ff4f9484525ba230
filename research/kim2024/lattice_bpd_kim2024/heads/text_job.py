"""What training jobs on text have in common: TextJob, and with a frozen target FrozenTargetJob."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lattice_bpd.train.text.corpus import Corpus, StrPath

_NOT_RECORDED = ("checkpoint_every", "device", "process_timeout", "restart", "resume", "output",
                 "target", "corpus", "options", "train")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TextJob:
    """A training on text: how the text is read and divided, logging, checkpoints, resuming.

    Jobs also have `output`, the folder of the result (new, empty, or of an earlier run), and
    `inputs`, files and folders of training text; see Corpus.

    Attributes:
        corpus: further arguments of Corpus. eos_id is appended to every sequence that lacks it;
            the default tokenizer is tokenizer.json of the target.
        validation: validation files; empty: the end of the training text is held out.
        validation_share: fraction of the text that is held out if validation is empty; 0: none.
        validation_pieces: number of validation texts; of those that the target generates too.
        own_rows: number of training texts that the target generates, where it generates any.
        prompt_length: number of prompt tokens of each, taken from the text.
        log_every: steps between lines of the loss log.
        checkpoint_every: steps between checkpoints; 0: only when a signal stops the run.
        device: "auto", "cpu" or "cuda".
        process_timeout: seconds to wait for another process of a parallel run.
        resume: True: fail without an unfinished run; None: resume one if there is one.
        restart: remove an earlier run in `output`.
    """

    corpus: dict[str, Any] = field(default_factory=dict)
    validation: Sequence[StrPath] = ()
    validation_share: float = 0.02
    validation_pieces: int = 64
    own_rows: int = 4096
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
        minimum = {"validation_pieces": 1, "own_rows": 0, "prompt_length": 1, "log_every": 1,
                   "checkpoint_every": 0}  # fmt: skip
        for name, low in minimum.items():
            self.check_minimum(name, low)
        if not 0.0 <= self.validation_share < 1.0:
            raise ValueError(
                f"validation_share is {self.validation_share}; expected 0 <= share < 1"
            )
        if self.restart and self.resume:
            raise ValueError("resume and restart are mutually exclusive; give one of them")
        if not 0.0 < self.process_timeout < math.inf:
            raise ValueError(f"process_timeout is {self.process_timeout}; expected seconds above 0")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device is {self.device!r}; expected auto, cpu or cuda")

    def check_minimum(self, name: str, low: int) -> None:
        """Raise ValueError for an option below a number; None is its default."""
        value = getattr(self, name)
        if value is not None and value < low:
            raise ValueError(f"{name} is {value}; expected {low} or more")

    def describe(self, corpus: Corpus, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Everything that the result depends on, for JSON; it must match to resume a run.

        Args:
            corpus: the training text.
            settings: options of the training.
        """
        fields = {
            entry.name: getattr(self, entry.name)
            for entry in dataclasses.fields(self)
            if entry.name not in _NOT_RECORDED
        }
        tokenizing = {name: value for name, value in self.corpus.items() if name != "threads"}
        record = {**fields, **tokenizing, **settings, "bytes_of_inputs": corpus.total_bytes}
        return {name: _plain(value) for name, value in record.items()}


@dataclass(frozen=True)
class FrozenTargetJob(TextJob):
    """A training with a frozen target; see TextJob for the other attributes.

    own_rows is the number of training texts that the target generates; 0: train on the text itself.

    Attributes:
        target: folder of a causal LM of transformers or of a BlockwiseLM, or a llama2.c .bin file.
        output: folder of the result.
        inputs: files and folders of training text.
    """

    target: StrPath
    output: StrPath
    inputs: Sequence[StrPath]


def _plain(value: Any) -> Any:
    """A value as JSON restores it."""
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, Path) else value
