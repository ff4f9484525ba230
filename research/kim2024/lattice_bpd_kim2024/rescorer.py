"""Training of neural rescorers, from arrays and from files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from lattice_bpd.models.checkpoint import load_target
from lattice_bpd.models.head_files import staged_folder
from lattice_bpd.models.lm_call import find_max_positions
from lattice_bpd.train.corpus import Corpus, StrPath
from lattice_bpd.watcher import Watcher
from lattice_bpd_kim2024.blockwise import BlockwiseLM
from lattice_bpd_kim2024.heads.job import FrozenTargetJob
from lattice_bpd_kim2024.heads.joint import TrainReport, train_blockwise
from lattice_bpd_kim2024.heads.options import TrainOptions, check_options
from lattice_bpd_kim2024.heads.run_folder import fingerprint
from lattice_bpd_kim2024.heads.starting_model import load_base
from lattice_bpd_kim2024.heads.text_run import TextRun, run_job
from lattice_bpd_kim2024.heads.texts import (
    HeadTexts,
    open_corpus,
)
from lattice_bpd_kim2024.heads.trainer import HeadTrainer, seeded
from lattice_bpd_kim2024.heads.validation import measure_heads
from lattice_bpd_kim2024.small_models import RESCORER_SIZES, SMALL_SIZES, build_rescorer

RESCORER_OPTIONS = TrainOptions(steps=900, batch_size=32, sequence_length=128)


def train_rescorer(
    model: PreTrainedModel,
    token_ids: npt.ArrayLike,
    options: TrainOptions = RESCORER_OPTIONS,
    on_step: Callable[[TrainReport], None] | None = None,
) -> TrainReport:
    """Trains a causal LM on next tokens, in place, as `train_blockwise` trains a target.

    The best training text is self-generated text of the target (`generate_texts`), since the
    target accepts nothing else.

    Args:
        model: any causal LM over the target's token ids; left in evaluation mode.
        token_ids: (N,) ints, concatenated texts; longer than sequence_length + 2.
        options: see TrainOptions; options of draft heads have no effect.
        on_step: called after every step; the first loss is the model's.

    Returns:
        The report of the last step.

    Raises:
        TypeError: not a causal LM with an output embedding.
        ValueError: a text that is too short, ids outside the vocabulary, options out of range, or
            a loss that is not finite.
    """
    # The trainer requires a draft head: size 1, loss weight 0, evaluated at one position.
    heads = BlockwiseLM(model, num_heads=2, inner_size=1)
    one = 1.0 / (options.batch_size * options.sequence_length) if options.batch_size > 0 else 1.0
    chosen = replace(options, head_weights=(1.0, 0.0), head_fraction=one, train_base=True)
    return train_blockwise(heads, token_ids, chosen, on_step)


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


KIND = "rescorer_training"
_WHERE = "rescorer train"
_NUM_HEADS = 2  # the trainer requires a draft head: size 1, loss weight 0


@dataclass(frozen=True)
class RescorerResult:
    """Result of the training of a rescorer.

    Attributes:
        output: the output folder, that of a causal LM of transformers.
        num_parameters: of the rescorer, its embedding table counted once if it is tied.
        steps: steps done.
        loss: the last loss in the log, nats per token.
        validation_loss: nats per token on validation text; None without.
        tokens: number of tokens of the training text.
        precision: "fp32" or "bf16".
        seconds: training time, summed over all resumed runs.
        was_finished: the run was finished before, and nothing was done.
    """

    output: Path
    num_parameters: int
    steps: int
    loss: float
    validation_loss: float | None
    tokens: int
    precision: str
    seconds: float
    was_finished: bool


def run_rescorer_job(job: RescorerJob, watcher: Watcher | None = None) -> RescorerResult:
    """Trains a rescorer as a job describes, or resumes an interrupted run.

    After Ctrl-C, SIGTERM or a crash the same call resumes from the last checkpoint; the result is
    bit-identical to that of an uninterrupted run on the same kind of machine.

    Args:
        job: see RescorerJob.
        watcher: progress callbacks.

    Returns:
        RescorerResult.

    Raises:
        ValueError: inconsistent options, text or folder; losses that are not finite.
        FormatError: damaged files.
        OSError: files that cannot be read or written.
        KeyboardInterrupt: Ctrl-C, after the checkpoint was written.

    Source: Kim et al. 2024, section 7.1 and appendix C.2.
    """
    return run_job(job, watcher, _Run)


class _RescorerTrainer(HeadTrainer):
    """Trains the LM of a BlockwiseLM; its draft head has no weight in the loss."""

    unit = "LM"

    def take_step(self) -> dict[int, float]:
        """Runs one step; returns the loss of the LM as that of unit 1."""
        return {1: super().take_step()[1]}


class _Run(TextRun[RescorerJob]):
    kind, where = KIND, _WHERE

    def train(self) -> RescorerResult:
        """Runs all stages."""
        job, folder = self.job, self.folder
        target = load_base(Path(job.target), full_precision=False)
        target.train(False)
        corpus = open_corpus(job.inputs, job.corpus, job.target, target)
        limit = find_max_positions(target.config)
        options = job.train_options(limit)
        model = self._build(corpus.size_of_vocabulary, limit, options)
        # One position of one sequence for the draft head, which the trainer evaluates anyway.
        share = 1.0 / (options.batch_size * options.sequence_length)
        options = replace(options, head_fraction=share)
        check_options(model, options, _WHERE)
        record, base = job.record(corpus, options), fingerprint(target)
        if self.begin(record, base):
            return self._result(was_finished=True)
        model.to(self.device)
        length = options.sequence_length + _NUM_HEADS
        if job.own_rows:
            target.to(self.device)  # type: ignore[arg-type]
        texts = self.read_head_texts(target, corpus, job.own_rows, length, seed=options.seed)
        texts.check(length, _WHERE)
        del target
        with _RescorerTrainer(model, texts.training, options, _WHERE) as trainer:
            trainer.run_in(folder, job, self._validation(trainer, texts), self.watcher)
        tokens = len(texts.training.token_ids)
        self._write_result(trainer, corpus, record, base, tokens)
        return self._result(was_finished=False)

    def _build(self, vocab_size: int, limit: int | None, options: TrainOptions) -> BlockwiseLM:
        """The rescorer with the draft head that the trainer requires."""
        job = self.job
        with seeded(options.seed):
            if job.initial is None:
                rescorer: PreTrainedModel = build_rescorer(
                    job.size, vocab_size, num_layers=job.num_layers, hidden_size=job.hidden_size,
                    max_positions=limit or max(1024, options.sequence_length),
                )  # fmt: skip
            else:
                rescorer = load_target(Path(job.initial), dtype=torch.float32)
                _check_initial(rescorer, Path(job.initial), vocab_size)
            return BlockwiseLM(rescorer, _NUM_HEADS, inner_size=1).eval()

    def _validation(
        self, trainer: HeadTrainer, texts: HeadTexts
    ) -> Callable[[], dict[str, Any]] | None:
        """The LM's scores for the loss log."""
        text = texts.validation
        if text is None:
            return None

        def measure() -> dict[str, Any]:
            scores = measure_heads(
                trainer.model, text, trainer.options.sequence_length,
                max_pieces=self.job.validation_pieces, precision=trainer.report.precision,
            )  # fmt: skip
            return scores._replace(
                losses=scores.losses[:1], accuracies=scores.accuracies[:1]
            ).for_log()

        return measure

    def _write_result(
        self, trainer: HeadTrainer, corpus: Corpus, record: dict[str, Any], base: str, tokens: int
    ) -> None:
        """Writes the rescorer, the loss plot and last the record."""
        rescorer = trainer.model.to("cpu").base

        def write(path: Path) -> None:
            with staged_folder(path, last="config.json") as staged:
                rescorer.save_pretrained(staged)

        files = self.write_model(write, corpus)
        size = sum(weight.numel() for weight in rescorer.parameters())
        self.finish(
            record, base, files, trainer.report, unit=trainer.unit, tokens=tokens,
            num_parameters=size,
        )  # fmt: skip

    def _result(self, *, was_finished: bool) -> RescorerResult:
        result = self.read_result()
        validation = result["validation"]
        return RescorerResult(
            self.folder.path,
            result["num_parameters"],
            result["steps"],
            result["losses"]["1"],
            None if validation is None else validation["losses"]["1"],
            result["tokens"],
            result["precision"],
            result["seconds"],
            was_finished,
        )


def _check_initial(rescorer: PreTrainedModel, folder: Path, vocab_size: int) -> None:
    size = int(rescorer.config.vocab_size)
    if size != vocab_size:
        raise ValueError(
            f"{folder}: the rescorer has a vocabulary of {size}, the target one of {vocab_size}; "
            "expected the same; start with a rescorer on the target's token ids"
        )
