"""Head training from files to files: model, text, training with checkpoints, result.

Each process that torchrun started loads or builds the model, starts or resumes the run in the
output folder, prepares the text, trains, and reads the result that process 0 wrote.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from lattice_bpd.atomic_files import replacing
from lattice_bpd.models.blockwise import BlockwiseLM
from lattice_bpd.token_ids import Int32Array
from lattice_bpd.train.heads.batches import HeadText
from lattice_bpd.train.heads.job import HeadJob
from lattice_bpd.train.heads.loop import run_steps
from lattice_bpd.train.heads.loss_log import read_log
from lattice_bpd.train.heads.loss_plot import write_loss_plot
from lattice_bpd.train.heads.options import TrainOptions, check_options
from lattice_bpd.train.heads.parallel import Processes, choose_device, join_processes, own_device
from lattice_bpd.train.heads.run_folder import RunFolder, fingerprint, read_record
from lattice_bpd.train.heads.starting_model import attach_heads, build_untrained, load_base
from lattice_bpd.train.heads.texts import (
    TOKENIZER,
    HeadTexts,
    generate_rows,
    hold_out,
    map_ids,
    open_corpus,
    store_corpus,
)
from lattice_bpd.train.heads.trainer import HeadTrainer
from lattice_bpd.train.heads.validation import measure_heads
from lattice_bpd.train.text.corpus import Corpus
from lattice_bpd.watcher import SilentWatcher, Watcher

_WHERE = "heads train"


@dataclass(frozen=True)
class HeadResult:
    """Result of a head-training run.

    Attributes:
        output: the output folder.
        steps: steps done.
        losses: last losses in the log, nats per token, by head number.
        validation_losses: final losses of all heads; empty without validation text.
        accuracies: likewise, the top-1 accuracy of each head.
        tokens: number of tokens of the training text.
        precision: "fp32" or "bf16".
        seconds: training time, summed over all resumed runs.
        was_finished: the run was finished before, and nothing was done.
    """

    output: Path
    steps: int
    losses: dict[int, float]
    validation_losses: dict[int, float]
    accuracies: dict[int, float]
    tokens: int
    precision: str
    seconds: float
    was_finished: bool


def train_heads(job: HeadJob, watcher: Watcher | None = None) -> HeadResult:
    """Trains heads as a job describes, or resumes an interrupted run.

    Processes started by torchrun train data-parallel and write one result. After Ctrl-C or SIGTERM
    a checkpoint is written at the end of the step, and the same call resumes from it; the result is
    bit-identical to that of an uninterrupted run (on the same kind of machine, with as many
    processes).

    Args:
        job: see HeadJob.
        watcher: progress callbacks, in process 0.

    Returns:
        HeadResult, in every process.

    Raises:
        ValueError: inconsistent options, text or folder; losses that are not finite.
        FormatError: damaged files.
        OSError: files that cannot be read or written; ConnectionError if another process ends.
        KeyboardInterrupt: Ctrl-C, after the checkpoint was written.
    """
    job.check()
    device = choose_device(job.device)
    with join_processes(device, job.process_timeout) as processes:
        if watcher is None or not processes.is_first:
            watcher = SilentWatcher()
        run = _Run(job, processes, watcher, own_device(device))
        try:
            return run.train()
        finally:
            run.folder.close()


@dataclass
class _Run:
    """A run in one process."""

    job: HeadJob
    processes: Processes
    watcher: Watcher
    device: torch.device
    folder: RunFolder = field(init=False)

    def __post_init__(self) -> None:
        self.folder = RunFolder(Path(self.job.output))

    def train(self) -> HeadResult:
        """Runs all stages."""
        job, processes = self.job, self.processes
        seed = int(job.train.get("seed") or 0)
        base = self._load_base()
        corpus = open_corpus(job.inputs, job.corpus, job.base, base)
        if base is None:
            model = build_untrained(job, corpus.size_of_vocabulary, seed)
        else:
            model = attach_heads(base, job, seed)
        options = job.train_options(model.max_positions, model.num_heads)
        check_options(model, options, _WHERE)
        record = job.record(corpus, options)
        base_fingerprint = None if base is None else fingerprint(base)
        if processes.run_on_first(
            lambda: self.folder.begin(
                record, base_fingerprint, resume=job.resume, restart=job.restart
            )
        ):
            return _read_result(self.folder, was_finished=True)
        model.to(self.device)
        processes.broadcast_tensors([weight.data for weight in model.parameters()])
        texts = self._prepare_texts(model, corpus, options)
        texts.check(options.sequence_length + model.num_heads, _WHERE)
        with HeadTrainer(model, texts.training, options, processes, _WHERE) as trainer:
            validate = self._validation(trainer, texts.validation)
            run_steps(trainer, job, self.folder, validate, self.watcher)
        tokens = len(texts.training.token_ids)
        processes.run_on_first(lambda: self._write_result(trainer, corpus, record, tokens))
        return _read_result(self.folder, was_finished=False)

    def _load_base(self) -> PreTrainedModel | None:
        if self.job.base is None:
            return None
        return load_base(Path(self.job.base), full_precision=self.job.head_recipe.train_base)

    def _prepare_texts(
        self, model: BlockwiseLM, corpus: Corpus, options: TrainOptions
    ) -> HeadTexts:
        """Training and validation text."""
        job = self.job
        length = options.sequence_length + model.num_heads
        ids = self._store(corpus, "text.bin")
        if job.validation:
            held: Int32Array | None = self._store(
                replace(corpus, inputs=job.validation), "validation.bin"
            )
        else:
            ids, held = hold_out(ids, job.validation_share, length)
        if not job.head_recipe.self_generated:
            return HeadTexts(HeadText(ids), None if held is None else HeadText(held))
        training = self._generate_rows(model, ids, "own-text", job.own_rows, options)
        if held is None:
            return HeadTexts(training, None)
        rows = self._generate_rows(model, held, "own-validation", job.validation_pieces, options)
        return HeadTexts(training, rows)

    def _store(self, corpus: Corpus, name: str) -> Int32Array:
        path = self.folder.work / name
        self.processes.run_on_first(lambda: store_corpus(corpus, path, corpus.eos_id, self.watcher))
        return map_ids(path)

    def _generate_rows(
        self, model: BlockwiseLM, ids: Int32Array, name: str, rows: int, options: TrainOptions
    ) -> HeadText:
        model.eval()
        return generate_rows(
            model.base,
            ids,
            self.folder.work / name,
            rows=rows,
            prompt_length=self.job.prompt_length,
            row_length=options.sequence_length + model.num_heads,
            num_beams=self.job.num_beams,
            seed=options.seed,
            processes=self.processes,
            watcher=self.watcher,
        )

    def _validation(
        self, trainer: HeadTrainer, text: HeadText | None
    ) -> Callable[[], dict[str, Any]] | None:
        """Scores of all heads for the loss log."""
        if text is None:
            return None
        return lambda: measure_heads(
            trainer.model,
            text,
            trainer.options.sequence_length,
            max_pieces=self.job.validation_pieces,
            precision=trainer.report.precision,
            processes=trainer.processes,
        ).for_log()

    def _write_result(
        self, trainer: HeadTrainer, corpus: Corpus, record: dict[str, Any], tokens: int
    ) -> None:
        """Writes the model, the loss plot and last the record."""
        model, path, report = trainer.model, self.folder.path, trainer.report
        before = set(path.iterdir())
        model.to("cpu")
        if self.job.heads_only:
            model.heads.save_pretrained(path)  # type: ignore[union-attr]
        else:
            model.save_pretrained(path)
        if corpus.tokenizer is not None and Path(corpus.tokenizer).name == TOKENIZER:
            with replacing(path / TOKENIZER) as temporary:
                shutil.copyfile(corpus.tokenizer, temporary)
        files = sorted(file.name for file in set(path.iterdir()) - before)
        lines = read_log(self.folder.log)
        write_loss_plot(self.folder.plot, lines, f"heads train --recipe {self.job.recipe}")
        scores = [line["validation"] for line in lines if "validation" in line]
        result = {
            "steps": report.steps,
            "losses": [line["losses"] for line in lines if "losses" in line][-1],
            "validation": scores[-1] if scores else None,
            "tokens": tokens,
            "precision": report.precision,
            "seconds": round(report.seconds, 3),
        }
        self.folder.finish(record, fingerprint(model.base), result, files)


def _read_result(folder: RunFolder, *, was_finished: bool) -> HeadResult:
    record = read_record(folder.path)
    if record is None:
        raise FileNotFoundError(f"{folder.path}: the record of the run was removed; train again")
    result = record["result"]
    scores = result["validation"] or {"losses": {}, "accuracies": {}}
    return HeadResult(
        folder.path,
        result["steps"],
        _by_number(result["losses"]),
        _by_number(scores["losses"]),
        _by_number(scores["accuracies"]),
        result["tokens"],
        result["precision"],
        result["seconds"],
        was_finished,
    )


def _by_number(values: dict[str, float]) -> dict[int, float]:
    return {int(head): value for head, value in values.items()}
