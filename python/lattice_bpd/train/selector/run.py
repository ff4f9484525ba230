"""Training of a selector from files to files: text, training with checkpoints, result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from lattice_bpd.models.block_drafter.module import BlockDrafter
from lattice_bpd.models.blockwise import BlockwiseLM
from lattice_bpd.models.checkpoint import DRAFTER_FOLDER, load_heads
from lattice_bpd.models.heads import BLOCKWISE_FILES, BlockwiseHeads
from lattice_bpd.models.medusa import MEDUSA_FILES, MedusaHeads
from lattice_bpd.token_ids import Int32Array
from lattice_bpd.train.block_drafter.text_run import TextRun
from lattice_bpd.train.block_drafter.trainer import piece_length
from lattice_bpd.train.heads.loop import run_steps
from lattice_bpd.train.heads.loss_log import read_log
from lattice_bpd.train.heads.loss_plot import write_loss_plot
from lattice_bpd.train.heads.parallel import Processes, choose_device, join_processes, own_device
from lattice_bpd.train.heads.run_folder import SELECTOR, RunFolder, fingerprint, read_record
from lattice_bpd.train.heads.starting_model import load_base
from lattice_bpd.train.heads.texts import open_corpus
from lattice_bpd.train.selector.job import SelectorJob
from lattice_bpd.train.selector.trainer import SelectorTrainer
from lattice_bpd.train.selector.validation import SelectorScores
from lattice_bpd.train.text.corpus import Corpus
from lattice_bpd.watcher import SilentWatcher, Watcher

_WHERE = "drafter train"
_SavedHeads = BlockwiseHeads | MedusaHeads | BlockDrafter


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
    job.check()
    device = choose_device(job.device)
    with join_processes(device, job.process_timeout) as processes:
        if processes.world_size > 1:
            raise ValueError(
                f"{_WHERE}: {processes.world_size} processes; expected one, since a selector is "
                "small; run it without torchrun"
            )
        run = _Run(job, processes, watcher or SilentWatcher(), own_device(device))
        try:
            return run.train()
        finally:
            run.folder.close()


class _Run(TextRun):
    """A run."""

    def __init__(
        self, job: SelectorJob, processes: Processes, watcher: Watcher, device: torch.device
    ) -> None:
        super().__init__(job, SELECTOR, job.options.seed, processes, watcher, device)
        self.job = job

    def train(self) -> SelectorResult:
        """Runs all stages."""
        job, folder = self.job, self.folder
        heads = _load_heads(Path(job.target))
        target = load_base(Path(job.target), full_precision=False)
        target.train(False)
        corpus = open_corpus(job.inputs, job.corpus, job.target, target)
        record = job.record(corpus, fingerprint(heads))
        base = fingerprint(target)
        if folder.begin(record, base, resume=job.resume, restart=job.restart):
            return _read_result(folder, was_finished=True)
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
            run_steps(trainer, job, folder, _validation(trainer), self.watcher)
        self._write_result(model, trainer, corpus, record, base)
        return _read_result(folder, was_finished=False)

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
        texts = self.generate(target, ids, name, rows, length)
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
            model = BlockwiseLM(model.base, heads=heads, selector=selector)
        files = self.write_model(model, corpus)
        lines = read_log(self.folder.log)
        write_loss_plot(self.folder.plot, lines, _WHERE, trainer.unit)
        scores = [line["validation"] for line in lines if "validation" in line]
        result = {
            "steps": trainer.report.steps,
            "losses": [line["losses"] for line in lines if "losses" in line][-1],
            "validation": scores[-1] if scores else None,
            "tokens": sum(len(piece) for piece, _ in trainer.pieces.training),
            "seconds": round(trainer.report.seconds, 3),
        }
        self.folder.finish(record, base, result, files)


def _load_heads(folder: Path) -> _SavedHeads:
    """The heads of a model folder.

    Raises:
        ValueError: it has none.
        FormatError: their files are damaged.
    """
    names = (BLOCKWISE_FILES.config_name, MEDUSA_FILES.config_name, DRAFTER_FOLDER)
    if not any((folder / name).exists() for name in names):
        raise ValueError(
            f"{folder}: has no heads ({', '.join(names)}); expected the folder of a model with "
            "heads, to train a selector for them; train heads first (lattice-bpd heads train, or "
            "drafter train without --selector)"
        )
    return load_heads(folder)


def _validation(trainer: SelectorTrainer) -> Callable[[], dict[str, Any]] | None:
    """Scores for the loss log."""
    if not trainer.pieces.validation:
        return None
    return lambda: trainer.validate(SilentWatcher()).for_log()


def _read_result(folder: RunFolder, *, was_finished: bool) -> SelectorResult:
    record = read_record(folder.path, SELECTOR)
    if record is None:
        raise FileNotFoundError(f"{folder.path}: the record of the run was removed; train again")
    result = record["result"]
    scores = result["validation"]
    return SelectorResult(
        folder.path,
        result["steps"],
        {int(slot): loss for slot, loss in result["losses"].items()},
        None if scores is None else SelectorScores.from_log(scores),
        result["tokens"],
        result["seconds"],
        was_finished,
    )
