"""Training of selectors from files to files, or on texts in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt
from transformers import PreTrainedModel

from lattice_bpd.models.blockwise import BlockwiseLM
from lattice_bpd.models.checkpoint import has_heads, head_names, load_heads
from lattice_bpd.token_ids import Int32Array
from lattice_bpd.train.corpus import Corpus
from lattice_bpd.watcher import Watcher
from lattice_bpd_drafters.block_drafter import BlockDrafter
from lattice_bpd_drafters.block_training import piece_length
from lattice_bpd_drafters.selector import CandidateSelector, SelectorHeads
from lattice_bpd_drafters.selector_texts import AnyHeads, SelectorOptions
from lattice_bpd_drafters.selector_training import SelectorScores, SelectorTrainer
from lattice_bpd_drafters.texts import BlockTexts
from lattice_bpd_kim2024.heads.job import FrozenTargetJob
from lattice_bpd_kim2024.heads.run_folder import SELECTOR, fingerprint
from lattice_bpd_kim2024.heads.starting_model import load_base
from lattice_bpd_kim2024.heads.text_run import TextRun, run_in_processes
from lattice_bpd_kim2024.heads.texts import open_corpus


@dataclass(frozen=True)
class SelectorJob(FrozenTargetJob):
    """A training of a selector: see FrozenTargetJob for text and output folder.

    `target` is a model folder with BlockwiseHeads, MedusaHeads or a BlockDrafter. With own_rows 0
    the held-out text itself is the validation text.

    Attributes:
        options: of the training; first_position is set to prompt_length for texts that the target
            generates.
        validate_every: steps between validations; 0: at the end only.
    """

    options: SelectorOptions = field(default_factory=SelectorOptions)
    validate_every: int = 0

    @property
    def train_options(self) -> SelectorOptions:
        """The options with the first position of the texts."""
        first = self.prompt_length if self.own_rows else 1
        return dataclasses.replace(self.options, first_position=first)

    def check(self) -> None:
        """Validates the options before anything is read.

        Raises:
            ValueError: the message names the option.
        """
        self.options.check()
        self.check_minimum("validate_every", 0)
        super().check()

    def record(self, corpus: Corpus, heads: str) -> dict[str, Any]:
        """Everything that the result depends on, for JSON; it must match to resume a run.

        Args:
            corpus: the training text.
            heads: their fingerprint.
        """
        return {**self.describe(corpus, asdict(self.train_options)), "heads_fingerprint": heads}


_WHERE = "drafter train"


@dataclass(frozen=True)
class SelectorResult:
    """Result of the training of a selector.

    Attributes:
        output: the output folder.
        steps: steps done.
        losses: last losses in the log, nats per token, by slot.
        scores: on validation text; None without.
        tokens: number of tokens of the training text.
        seconds: training time, summed over all resumed runs.
        was_finished: the run was finished before, and nothing was done.
    """

    output: Path
    steps: int
    losses: dict[int, float]
    scores: SelectorScores | None
    tokens: int
    seconds: float
    was_finished: bool


def run_selector_job(job: SelectorJob, watcher: Watcher | None = None) -> SelectorResult:
    """Trains a selector as a job describes, or resumes an interrupted run.

    After Ctrl-C, SIGTERM or a crash the same call resumes from the last checkpoint; the result is
    bit-identical to that of an uninterrupted run (on the same kind of machine).

    Args:
        job: see SelectorJob.
        watcher: progress callbacks.

    Returns:
        SelectorResult; the folder is a model of `BlockwiseLM.from_pretrained`: target, heads and
        selector, or a block drafter that has the selector (DFlash2).

    Raises:
        ValueError: inconsistent options, text or folder; a loss that is not a number; torchrun.
        FormatError: damaged files, or a target without heads.
        OSError: files that cannot be read or written.
        KeyboardInterrupt: Ctrl-C, after the checkpoint was written.
    """
    return run_in_processes(job, watcher, _Run)


class _Run(TextRun[SelectorJob]):
    """A run."""

    kind, where = SELECTOR, _WHERE

    def train(self) -> SelectorResult:
        """Runs all stages."""
        job, count = self.job, self.processes.world_size
        if count > 1:
            raise ValueError(
                f"{_WHERE}: {count} processes; expected one, since a selector is small; run it "
                "without torchrun"
            )
        heads = _load_heads(Path(job.target))
        target = load_base(Path(job.target), full_precision=False)
        target.train(False)
        corpus = open_corpus(job.inputs, job.corpus, job.target, target)
        record = job.record(corpus, fingerprint(heads))
        base = fingerprint(target)
        if self.begin(record, base):
            return self._result(was_finished=True)
        model = BlockwiseLM(target, heads=heads).to(self.device).eval()
        length = piece_length(target, job.options.sequence_length)
        self._check_length(length, model.num_slots)
        ids, held = self.read_text(corpus, length)
        texts = self._texts(target, ids, "own-text", job.own_rows, length)
        validation: list[Int32Array] = []
        if held is not None:
            rows = job.validation_pieces if job.own_rows else 0
            validation = self._texts(target, held, "own-validation", rows, length)
        with SelectorTrainer(target, heads, texts, job.train_options, validation) as trainer:
            trainer.run_in(self.folder, job, _validation(trainer), self.watcher)
        self._write_result(model, trainer, corpus, record, base)
        return self._result(was_finished=False)

    def _check_length(self, length: int, num_slots: int) -> None:
        needed = self.job.train_options.first_position + num_slots + 1
        if length < needed:
            raise ValueError(
                f"{_WHERE}: sequence_length is {length}; expected {needed} or more (a prompt, "
                f"{num_slots} slots + 1)"
            )

    def _texts(
        self, target: PreTrainedModel, ids: Int32Array, name: str, rows: int, length: int
    ) -> list[Int32Array]:
        seed = self.job.options.seed
        generated = self.generate_text(target, ids, name, rows, length, seed=seed)
        texts = BlockTexts.of_rows(generated)
        pairs = zip(texts.starts, texts.ends, strict=True)
        return [texts.token_ids[start:end] for start, end in pairs]

    def _write_result(
        self,
        model: BlockwiseLM,
        trainer: SelectorTrainer,
        corpus: Corpus,
        record: dict[str, Any],
        base: str,
    ) -> None:
        """Writes the model, the loss plot and last the record."""
        heads, selector = model.heads, trainer.selector
        if isinstance(heads, BlockDrafter):
            heads.use_selector(selector)
        else:
            model = BlockwiseLM(model.base, heads=SelectorHeads(heads, selector))
        files = self.write_model(model.to("cpu").save_pretrained, corpus)
        tokens = sum(len(piece) for piece, _ in trainer.pieces.training)
        self.finish(record, base, files, trainer.report, unit=trainer.unit, tokens=tokens)

    def _result(self, *, was_finished: bool) -> SelectorResult:
        result = self.read_result()
        scores = result["validation"]
        return SelectorResult(
            self.folder.path,
            result["steps"],
            {int(slot): loss for slot, loss in result["losses"].items()},
            None if scores is None else SelectorScores.from_log(scores),
            result["tokens"],
            result["seconds"],
            was_finished,
        )


def _load_heads(folder: Path) -> Any:
    """The heads of a model folder.

    Raises:
        ValueError: it has none.
        FormatError: their files are damaged.
    """
    if not has_heads(folder):
        raise ValueError(
            f"{folder}: has no heads ({', '.join(head_names())}); expected the folder of a model "
            "with heads, to train a selector for them; train heads first (lattice-bpd heads "
            "train, or drafter train without --selector)"
        )
    heads = load_heads(folder)
    return heads.heads if isinstance(heads, SelectorHeads) else heads


def _validation(trainer: SelectorTrainer) -> Callable[[], dict[str, Any]] | None:
    """Scores for the loss log."""
    if not trainer.pieces.validation:
        return None
    return lambda: trainer.validate(Watcher()).for_log()


@dataclass(frozen=True)
class TrainedSelector:
    """What `train_selector` returns.

    Attributes:
        selector: on the target's device, in evaluation mode.
        losses: of each step, nats per slot.
        scores: on the held-out texts.
    """

    selector: CandidateSelector
    losses: list[float]
    scores: SelectorScores


def train_selector(
    target: PreTrainedModel,
    heads: AnyHeads,
    texts: Sequence[npt.ArrayLike],
    options: SelectorOptions | None = None,
    watcher: Watcher | None = None,
) -> TrainedSelector:
    """Trains transition scores; target and heads are unchanged.

    The result is used by `BlockwiseLM(target, heads=heads, selector=selector)`, which saves it with
    the heads, or for a block drafter by `drafter.use_selector(selector)`.

    Args:
        target: a causal LM, on any device.
        heads: BlockwiseHeads, Medusa's or another head source, or a BlockDrafter, on that device.
        texts: token ids (T,) each, two texts or more; best are texts that the target generated.
        options: see SelectorOptions.
        watcher: receives the progress.

    Raises:
        TypeError: heads of another kind.
        ValueError: texts or options out of range, or a loss that is not finite.
    """
    options, watcher = options or SelectorOptions(), watcher or Watcher()
    losses: list[float] = []
    with SelectorTrainer(target, heads, texts, options) as trainer:

        def after_step(_: object) -> str:
            losses.extend(trainer.report.losses)
            return f"loss {losses[-1]:.3f}"

        trainer.run(watcher=watcher, stage="training the selector", on_step=after_step)
        scores = trainer.validate(watcher)
    return TrainedSelector(trainer.selector, losses, scores)
