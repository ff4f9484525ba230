"""Descriptions of training on text: TextJob, FrozenTargetJob, HeadJob."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lattice_bpd.train.corpus import Corpus, StrPath
from lattice_bpd_kim2024.heads.options import TrainOptions
from lattice_bpd_kim2024.heads.recipes import HeadRecipe, find_preset, find_recipe

_NOT_RECORDED = ("checkpoint_every", "device", "restart", "resume", "output",
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


_NOT_SET = ("train_base", "max_seconds")


@dataclass(frozen=True)
class HeadJob(TextJob):
    """A head-training run: recipe, data, options, output folder.

    own_rows and prompt_length are for distil and distil-finetune, whose texts the target generates.

    Attributes (see TextJob for the others):
        recipe: "joint", "frozen", "finetune", "distil" or "distil-finetune".
        output: folder of the result.
        inputs: files and folders of training text.
        base: folder of a causal LM of transformers or of a BlockwiseLM, or a llama2.c .bin file;
            all recipes but joint.
        config: joint: JSON of a model of transformers (with model_type), or of build_small_gpt's
            sizes; None: the defaults of build_small_gpt.
        heads: folder of initial heads, or "new"; None: those of a base that is a BlockwiseLM,
            else new ones.
        num_heads: h of new heads; None: 9, or those of `heads`.
        inner_size: hidden size of new heads; None: the target's.
        first_head: joint and finetune: head 1 has a network of its own, see
            `lattice_bpd.models.heads`; None: as in the preset, else no.
        preset: name of a paper's training, see `recipes.PRESETS`; its options replace the recipe's.
        train: options of TrainOptions by name; defaults come from the preset or the recipe. The
            default sequence_length is 256, or fewer if the target has fewer positions.
        validate_every: steps between validations; 0: at the end only.
        num_beams: distil, distil-finetune: beams of the search that generates the texts; 1: greedy.
        heads_only: write the heads without the target.
    """

    recipe: str
    output: StrPath
    inputs: Sequence[StrPath]
    base: StrPath | None = None
    config: StrPath | None = None
    heads: str | None = None
    num_heads: int | None = None
    inner_size: int | None = None
    first_head: bool | None = None
    preset: str | None = None
    train: dict[str, Any] = field(default_factory=dict)
    validate_every: int = 0
    num_beams: int = 1
    heads_only: bool = False

    @property
    def head_recipe(self) -> HeadRecipe:
        """The recipe of that name."""
        return find_recipe(self.recipe)

    @property
    def has_first_head(self) -> bool:
        """Whether head 1 gets a network of its own."""
        if self.first_head is None and self.preset is not None:
            return find_preset(self.preset, self.recipe).first_head
        return bool(self.first_head)

    @property
    def chosen_options(self) -> dict[str, Any]:
        """Options of TrainOptions that preset and job set; the job's come first."""
        preset = {} if self.preset is None else find_preset(self.preset, self.recipe).options
        given = {name: value for name, value in self.train.items() if value is not None}
        return {**preset.get(self.recipe, {}), **given}

    def check(self) -> None:
        """Validates the options before anything is read.

        Raises:
            ValueError: the message names the option.
        """
        recipe = self.head_recipe
        if recipe.has_base and self.base is None:
            raise ValueError(
                f"recipe {recipe.name} needs a trained target; give it as base (--base)"
            )
        if not recipe.has_base and (self.base is not None or self.heads is not None):
            raise ValueError(
                "recipe joint starts from random weights, without base and heads; expected only "
                "config (--config); recipe finetune trains an existing target"
            )
        if recipe.has_base and self.config is not None:
            raise ValueError(f"recipe {recipe.name} takes base (--base), not config (--config)")
        if self.preset is not None:
            find_preset(self.preset, self.recipe)
        if self.has_first_head and not recipe.train_base:
            raise ValueError(
                f"recipe {recipe.name} does not train the target, and a network for head 1 would "
                "change it; expected recipe joint or finetune with first_head (--first-head)"
            )
        settable = {entry.name for entry in dataclasses.fields(TrainOptions)} - set(_NOT_SET)
        if self.num_beams > 1 and not recipe.self_generated:
            raise ValueError(
                f"recipe {recipe.name} generates no text; expected recipe distil or "
                f"distil-finetune with num_beams {self.num_beams} (--num-beams)"
            )
        for name in sorted(set(self.train) - settable):
            raise ValueError(
                f"train has {name!r}; expected {', '.join(sorted(settable))}; the recipe sets "
                "train_base, and max_seconds would make results depend on the machine"
            )
        super().check()
        minimum = {"validate_every": 0, "own_rows": 1, "num_beams": 1, "num_heads": 2,
                   "inner_size": 1}  # fmt: skip
        for name, low in minimum.items():
            self.check_minimum(name, low)

    def train_options(self, max_positions: int | None, num_heads: int) -> TrainOptions:
        """The recipe's options overridden by this job's.

        Raises:
            ValueError: max_positions is too small for the texts of distil.
        """
        recipe = self.head_recipe
        names = ("train_base", "matrix_lr", "other_lr", "base_rate", "head_ramp", "head_fraction")
        options = {name: getattr(recipe, name) for name in names}
        # The target reads all but the last token of a generated text, labels included.
        limit = (max_positions or 1 << 30) - (num_heads - 1 if recipe.self_generated else 0)
        chosen = self.chosen_options
        length = self.train.get("sequence_length") or min(chosen.get("sequence_length", 256), limit)
        if recipe.self_generated and not self.prompt_length <= length <= limit:
            raise ValueError(
                f"sequence_length is {length}; expected {self.prompt_length} (prompt_length) to "
                f"{limit} (the target's positions less {num_heads - 1} for the far heads' labels)"
            )
        return TrainOptions(**{**options, **chosen, "sequence_length": length})

    def record(self, corpus: Corpus, options: TrainOptions) -> dict[str, Any]:
        """Everything that the result depends on, for JSON; it must match to resume a run."""
        settings = {name: value for name, value in vars(options).items() if name != "max_seconds"}
        return self.describe(corpus, settings)
