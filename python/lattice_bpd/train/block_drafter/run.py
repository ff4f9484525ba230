"""Training of a block drafter from files to files: text, training with checkpoints, result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from lattice_bpd.models.blockwise import BlockwiseLM
from lattice_bpd.token_ids import Int32Array
from lattice_bpd.train.block_drafter.job import BlockJob
from lattice_bpd.train.block_drafter.sizes import config_for, embedding_rows, find_unused_token
from lattice_bpd.train.block_drafter.texts import BlockTexts
from lattice_bpd.train.block_drafter.train import new_drafter
from lattice_bpd.train.block_drafter.trainer import BlockTrainer, piece_length
from lattice_bpd.train.block_drafter.validation import measure_drafter
from lattice_bpd.train.text.corpus import Corpus
from lattice_bpd.watcher import Watcher
from lattice_bpd_kim2024.heads.loop import run_steps
from lattice_bpd_kim2024.heads.run_folder import fingerprint
from lattice_bpd_kim2024.heads.starting_model import load_base
from lattice_bpd_kim2024.heads.text_run import TextRun, run_in_processes
from lattice_bpd_kim2024.heads.texts import open_corpus

KIND = "block_drafter_training"
_WHERE = "drafter train"


@dataclass(frozen=True)
class BlockResult:
    """Result of the training of a block drafter.

    Attributes:
        output: the output folder.
        steps: steps done.
        losses: last losses in the log, nats per token, by slot.
        block_efficiency: tokens per call of the target on validation text, when the most likely
            tokens are drafted; None without validation text.
        accuracies: likewise, the share of correct tokens by slot; empty without.
        tokens: number of tokens of the training text.
        precision: "fp32" or "bf16".
        seconds: training time, summed over all resumed runs.
        was_finished: the run was finished before, and nothing was done.
    """

    output: Path
    steps: int
    losses: dict[int, float]
    block_efficiency: float | None
    accuracies: dict[int, float]
    tokens: int
    precision: str
    seconds: float
    was_finished: bool


def run_block_job(job: BlockJob, watcher: Watcher | None = None) -> BlockResult:
    """Trains a block drafter as a job describes, or resumes an interrupted run.

    Processes started by torchrun train data-parallel and write one result. After Ctrl-C, SIGTERM or
    a crash the same call resumes from the last checkpoint; the result is bit-identical to that of
    an uninterrupted run (on the same kind of machine, with as many processes).

    Args:
        job: see BlockJob.
        watcher: progress callbacks, in process 0.

    Returns:
        BlockResult, in every process; the folder is a model of `BlockwiseLM.from_pretrained`.

    Raises:
        ValueError: inconsistent options, text or folder; losses that are not finite.
        FormatError: damaged files.
        OSError: files that cannot be read or written; ConnectionError if another process ends.
        KeyboardInterrupt: Ctrl-C, after the checkpoint was written.
    """
    return run_in_processes(job, watcher, _Run)


class _Run(TextRun[BlockJob]):
    """A run in one process."""

    kind, where = KIND, _WHERE

    def train(self) -> BlockResult:
        """Runs all stages."""
        job, seed = self.job, self.job.options.seed
        target = load_base(Path(job.target), full_precision=False)
        target.train(False)
        corpus = open_corpus(job.inputs, job.corpus, job.target, target)
        record = job.record(corpus)
        base = fingerprint(target)
        if self.begin(record, base):
            return self._result(was_finished=True)
        target.to(self.device)  # type: ignore[arg-type]
        length = piece_length(target, job.options.sequence_length)
        ids, held = self.read_text(corpus, length)
        config = config_for(
            target, job.num_layers, job.block_size, self._mask_token(ids, target),
            hidden_layers=job.hidden_layers, intermediate_size=job.intermediate_size,
        )  # fmt: skip
        drafter = new_drafter(target, config, seed)
        own = self.generate_text(target, ids, "own-text", job.own_rows, length, seed=seed)
        texts = BlockTexts.of_rows(own)
        validation = None
        if held is not None:
            name, rows = "own-validation", job.validation_pieces
            generated = self.generate_text(target, held, name, rows, length, seed=seed)
            validation = BlockTexts.of_rows(generated)
            validation.check(drafter.num_slots, config.vocab_size or 0, f"{_WHERE}: validation")
        options = job.train_options
        with BlockTrainer(drafter, target, texts, options, self.processes, _WHERE) as trainer:
            run_steps(trainer, job, self.folder, _validation(trainer, validation), self.watcher)
        self.processes.run_on_first(lambda: self._write_result(trainer, corpus, record, base))
        return self._result(was_finished=False)

    def _mask_token(self, ids: Int32Array, target: PreTrainedModel) -> int:
        if self.job.mask_token_id is not None:
            return self.job.mask_token_id
        return find_unused_token(ids, embedding_rows(target))

    def _write_result(
        self, trainer: BlockTrainer, corpus: Corpus, record: dict[str, Any], base: str
    ) -> None:
        """Writes the model, the loss plot and last the record."""
        model = BlockwiseLM(trainer.target, heads=trainer.drafter).to("cpu")
        files = self.write_model(model.save_pretrained, corpus)
        tokens = len(trainer.texts.token_ids)
        self.finish(record, base, files, trainer.report, unit=trainer.unit, tokens=tokens)

    def _result(self, *, was_finished: bool) -> BlockResult:
        result = self.read_result()
        scores = result["validation"] or {"block_efficiency": None, "accuracies": {}}
        return BlockResult(
            self.folder.path,
            result["steps"],
            {int(slot): loss for slot, loss in result["losses"].items()},
            scores["block_efficiency"],
            {int(slot): share for slot, share in scores["accuracies"].items()},
            result["tokens"],
            result["precision"],
            result["seconds"],
            was_finished,
        )


def _validation(
    trainer: BlockTrainer, texts: BlockTexts | None
) -> Callable[[], dict[str, Any]] | None:
    """Scores for the loss log."""
    if texts is None:
        return None
    return lambda: measure_drafter(trainer.drafter, trainer.target, texts, trainer.length).for_log()
