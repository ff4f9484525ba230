"""Head training from files to files: model, text, training with checkpoints, result.

A run loads or builds the model, starts or resumes in the output folder, prepares the text, trains,
and reads the result that it wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedModel

from lattice_bpd.models.heads import BlockwiseHeads
from lattice_bpd.train.corpus import Corpus
from lattice_bpd.watcher import Watcher
from lattice_bpd_kim2024.heads.job import HeadJob
from lattice_bpd_kim2024.heads.options import HeadText, check_options
from lattice_bpd_kim2024.heads.run_folder import HEADS, fingerprint
from lattice_bpd_kim2024.heads.starting_model import attach_heads, build_untrained, load_base
from lattice_bpd_kim2024.heads.text_run import TextRun, run_job
from lattice_bpd_kim2024.heads.texts import (
    open_corpus,
)
from lattice_bpd_kim2024.heads.trainer import HeadTrainer
from lattice_bpd_kim2024.heads.validation import measure_heads

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

    After Ctrl-C or SIGTERM a checkpoint is written at the end of the step, and the same call
    resumes from it; the result is bit-identical to that of an uninterrupted run on the same kind of
    machine.

    Args:
        job: see HeadJob.
        watcher: progress callbacks.

    Returns:
        HeadResult.

    Raises:
        ValueError: inconsistent options, text or folder; losses that are not finite.
        FormatError: damaged files.
        OSError: files that cannot be read or written.
        KeyboardInterrupt: Ctrl-C, after the checkpoint was written.
    """
    return run_job(job, watcher, _Run)


class _Run(TextRun[HeadJob]):
    kind, where = HEADS, _WHERE

    @property
    def title(self) -> str:
        """Of the loss plot."""
        return f"{_WHERE} --recipe {self.job.recipe}"

    def train(self) -> HeadResult:
        """Runs all stages."""
        job = self.job
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
        if self.begin(record, None if base is None else fingerprint(base)):
            return self._result(was_finished=True)
        model.to(self.device)
        length, recipe = options.sequence_length + model.num_heads, job.head_recipe
        rows = job.own_rows if recipe.self_generated else 0
        beams = {"seed": options.seed, "num_beams": job.num_beams}
        model.eval()
        texts = self.read_head_texts(model.base, corpus, rows, length, **beams)
        texts.check(length, _WHERE)
        with HeadTrainer(model, texts.training, options, _WHERE) as trainer:
            validate = self._validation(trainer, texts.validation)
            trainer.run_in(self.folder, job, validate, self.watcher)
        tokens = len(texts.training.token_ids)
        self._write_result(trainer, corpus, record, tokens)
        return self._result(was_finished=False)

    def _load_base(self) -> PreTrainedModel | None:
        if self.job.base is None:
            return None
        return load_base(Path(self.job.base), full_precision=self.job.head_recipe.train_base)

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
        ).for_log()

    def _write_result(
        self, trainer: HeadTrainer, corpus: Corpus, record: dict[str, Any], tokens: int
    ) -> None:
        """Writes the model, the loss plot and last the record."""
        model, heads_only = trainer.model.to("cpu"), self.job.heads_only
        heads = cast(BlockwiseHeads, model.heads)
        save_heads = partial(heads.save_pretrained, target=model.base)
        files = self.write_model(save_heads if heads_only else model.save_pretrained, corpus)
        base = fingerprint(model.base)
        self.finish(record, base, files, trainer.report, unit=trainer.unit, tokens=tokens)

    def _result(self, *, was_finished: bool) -> HeadResult:
        result = self.read_result()
        scores = result["validation"] or {"losses": {}, "accuracies": {}}
        return HeadResult(
            self.folder.path,
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
