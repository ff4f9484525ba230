"""What a run of `heads train` is asked to do."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lattice_bpd.train.heads.options import TrainOptions
from lattice_bpd.train.heads.recipes import HeadRecipe, find_recipe
from lattice_bpd.train.text.corpus import Corpus, StrPath

_PACE = ("checkpoint_every", "device", "process_timeout", "restart", "resume", "output")
_NOT_SET = ("train_base", "max_seconds")


@dataclass(frozen=True)
class HeadJob:
    """A run: what to train, on what, how, and where to.

    Attributes:
        recipe: "joint", "frozen", "finetune" or "distil".
        output: folder of the result; new, empty, or one of an earlier run.
        inputs: files and folders to learn from, see Corpus.
        corpus: further arguments of Corpus. eos_id is put behind every sequence that lacks it; the
            tokenizer defaults to the base's tokenizer.json.
        base: folder of a causal LM of transformers or of a BlockwiseLM, or a llama2.c .bin file;
            all recipes but joint.
        config: joint: JSON of a model of transformers (with model_type), or of build_small_gpt's
            sizes; None: build_small_gpt as it is.
        heads: folder of heads to begin from, or "new"; None: those of a base that is a
            BlockwiseLM, else new ones.
        num_heads: h of new heads; None: 9, or those of `heads`.
        inner_size: width of new heads' hidden layer; None: the target's.
        train: options of TrainOptions by name; what is left out comes from the recipe. Without
            sequence_length it is 256, or what the target has positions for.
        validation: files that only measure; empty: the end of the text is held out.
        validation_share: how much of the text is held out where validation is empty; 0: nothing.
        validate_every: steps between validations; 0: at the end only.
        validation_pieces: pieces that are measured, at most.
        own_rows: distil: texts that the target writes.
        prompt_length: distil: tokens of the text that begin each of them.
        log_every: steps between lines of the loss log.
        checkpoint_every: steps between checkpoints; 0: only when stopped by a signal.
        heads_only: write the heads without the target.
        device: "auto", "cpu" or "cuda".
        process_timeout: seconds after which a silent process of a parallel run is given up.
        resume: True: there must be an unfinished run to go on with; None: go on if there is one.
        restart: throw an earlier run in `output` away.
    """

    recipe: str
    output: StrPath
    inputs: Sequence[StrPath]
    corpus: dict[str, Any] = field(default_factory=dict)
    base: StrPath | None = None
    config: StrPath | None = None
    heads: str | None = None
    num_heads: int | None = None
    inner_size: int | None = None
    train: dict[str, Any] = field(default_factory=dict)
    validation: Sequence[StrPath] = ()
    validation_share: float = 0.02
    validate_every: int = 0
    validation_pieces: int = 64
    own_rows: int = 4096
    prompt_length: int = 16
    log_every: int = 10
    checkpoint_every: int = 200
    heads_only: bool = False
    device: str = "auto"
    process_timeout: float = 1800.0
    resume: bool | None = None
    restart: bool = False

    @property
    def way(self) -> HeadRecipe:
        """The recipe."""
        return find_recipe(self.recipe)

    def check(self) -> None:
        """Refuse what contradicts itself or is out of range, before anything is read.

        Raises:
            ValueError: the message names the option.
        """
        way = self.way
        if way.has_base and self.base is None:
            raise ValueError(f"recipe {way.name} needs a trained target: name it (base, --base)")
        if not way.has_base and (self.base is not None or self.heads is not None):
            raise ValueError(
                "recipe joint begins from random weights and takes no base and no heads; expected "
                "config alone (--config); recipe finetune trains a target that is there"
            )
        if way.has_base and self.config is not None:
            raise ValueError(f"recipe {way.name} takes base (--base), not config (--config)")
        if self.restart and self.resume:
            raise ValueError("resume and restart exclude each other; give one of them")
        settable = {entry.name for entry in dataclasses.fields(TrainOptions)} - set(_NOT_SET)
        for name in sorted(set(self.train) - settable):
            raise ValueError(
                f"train has {name!r}; expected {', '.join(sorted(settable))}; the recipe settles "
                "train_base, and a cap on seconds would make results depend on the machine"
            )
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device is {self.device!r}; expected auto, cpu or cuda")
        self._check_numbers()

    def _check_numbers(self) -> None:
        least = {"validate_every": 0, "checkpoint_every": 0, "log_every": 1, "own_rows": 1,
                 "prompt_length": 1, "validation_pieces": 1, "num_heads": 2,
                 "inner_size": 1}  # fmt: skip
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ValueError(f"{name} is {value}; expected {low} or more")
        if not 0.0 <= self.validation_share < 1.0:
            raise ValueError(
                f"validation_share is {self.validation_share}; expected 0 <= share < 1"
            )
        if not 0.0 < self.process_timeout < math.inf:
            raise ValueError(f"process_timeout is {self.process_timeout}; expected seconds above 0")

    def train_options(self, max_positions: int | None, num_heads: int) -> TrainOptions:
        """The recipe's options with those of this job, for a target with so many positions.

        Raises:
            ValueError: positions too few for distil's texts.
        """
        way = self.way
        names = ("train_base", "matrix_lr", "other_lr", "base_rate", "head_ramp", "head_fraction")
        options = {name: getattr(way, name) for name in names}
        # The target reads all of its own text but the last token, labels included.
        room = (max_positions or 1 << 30) - (num_heads - 1 if way.own_text else 0)
        length = self.train.get("sequence_length") or min(256, room)
        if way.own_text and not self.prompt_length <= length <= room:
            raise ValueError(
                f"sequence_length is {length}; expected {self.prompt_length} (prompt_length) to "
                f"{room} (the target's positions less {num_heads - 1} for the far heads' labels)"
            )
        given = {name: value for name, value in self.train.items() if value is not None}
        return TrainOptions(**{**options, **given, "sequence_length": length})

    def record(self, corpus: Corpus, options: TrainOptions) -> dict[str, Any]:
        """All that the result depends on, for JSON; a run is resumed where this is the same."""
        fields = {
            entry.name: getattr(self, entry.name)
            for entry in dataclasses.fields(self)
            if entry.name not in (*_PACE, "train", "corpus")
        }
        tokenizing = {name: value for name, value in self.corpus.items() if name != "threads"}
        settings = {name: value for name, value in vars(options).items() if name != "max_seconds"}
        record = {**fields, **tokenizing, **settings, "bytes_of_inputs": corpus.total_bytes}
        return {name: _plain(value) for name, value in record.items()}


def _plain(value: Any) -> Any:
    """A value as JSON would give it back."""
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, Path) else value
