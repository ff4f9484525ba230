"""What runs that train on text have in common: folder, text, plot, result."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from transformers import PreTrainedModel

from lattice_bpd.atomic_files import replacing, write_text
from lattice_bpd.token_ids import Int32Array
from lattice_bpd.train.corpus import Corpus
from lattice_bpd.train.trainer import TrainReport
from lattice_bpd.watcher import Watcher
from lattice_bpd_kim2024.heads.job import FrozenTargetJob, HeadJob
from lattice_bpd_kim2024.heads.loop import read_log
from lattice_bpd_kim2024.heads.options import HeadText
from lattice_bpd_kim2024.heads.run_folder import TEXTS, RunFolder, read_record
from lattice_bpd_kim2024.heads.texts import (
    TOKENIZER,
    HeadTexts,
    generate_rows,
    hold_out,
    map_ids,
    store_corpus,
)
from lattice_bpd_kim2024.report.charts import Series, as_file, draw_lines


def write_loss_plot(
    path: Path, lines: Sequence[Mapping[str, Any]], title: str, unit: str = "head"
) -> None:
    """Plots training losses (lines) and validation losses (dots) by step.

    Args:
        path: the .svg file, replaced as a whole.
        lines: of a loss log, see `loss_log`.
        title: title of the plot.
        unit: what has a loss of its own, "head" or "slot".

    Raises:
        OSError: the file cannot be written.
    """
    training = _curves(line for line in lines if "losses" in line)
    validation = _curves(
        {"step": line["step"], **line["validation"]}
        for line in lines
        if "losses" in line.get("validation", {})
    )
    series = [
        Series(f"{unit} {head}", training.get(head, ()), validation.get(head, ()))
        for head in sorted({*training, *validation})
    ]
    note = "dots: validation" if validation else ""
    chart = draw_lines(series, title=title, x_label="step", y_label="loss, nats a token", note=note)
    write_text(path, as_file(chart))


def _curves(lines: Any) -> dict[int, list[tuple[float, float]]]:
    """(step, loss) of each head."""
    curves: dict[int, list[tuple[float, float]]] = {}
    for line in lines:
        for head, loss in line["losses"].items():
            curves.setdefault(int(head), []).append((line["step"], loss))
    return dict(sorted(curves.items()))


AnyJob = TypeVar("AnyJob", bound=HeadJob | FrozenTargetJob)
Result_co = TypeVar("Result_co", covariant=True)


class Run(Protocol[Result_co]):
    """A run in a folder."""

    folder: RunFolder

    def train(self) -> Result_co:
        """Runs all stages."""
        ...


def run_job(
    job: AnyJob,
    watcher: Watcher | None,
    make_run: Callable[[AnyJob, Watcher, torch.device], Run[Result_co]],
) -> Result_co:
    """Runs a job.

    Args:
        job: its description.
        watcher: progress callbacks.
        make_run: its run.

    Raises:
        ValueError: inconsistent options, and what the run raises.
    """
    job.check()
    run = make_run(job, watcher or Watcher(), choose_device(job.device))
    try:
        return run.train()
    finally:
        run.folder.close()


def choose_device(device: str) -> torch.device:
    """The device of an option: "cpu" or "cuda", which "auto" chooses.

    Raises:
        ValueError: "cuda" without a GPU.
    """
    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise ValueError("device is cuda and torch finds no GPU; expected one, or --device cpu")
    return torch.device("cuda" if has_gpu and device != "cpu" else "cpu")


class TextRun(Generic[AnyJob]):
    """The stages around a training.

    Args:
        job: its description.
        watcher: progress callbacks.
        device: of the target.

    Attributes:
        kind: of the run, in the folder's record.
        where: the command, for messages and the loss plot.
    """

    kind: str
    where: str

    def __init__(self, job: AnyJob, watcher: Watcher, device: torch.device) -> None:
        self.folder = RunFolder(Path(job.output), self.kind)
        self.job, self.watcher, self.device = job, watcher, device

    @property
    def title(self) -> str:
        """Of the loss plot."""
        return self.where

    def begin(self, record: dict[str, Any], base: str | None) -> bool:
        """Prepares the folder; whether the run in it is finished.

        Args:
            record: everything that the result depends on.
            base: fingerprint of the target, if any.

        Raises:
            ValueError: the folder holds something else.
        """
        job = self.job
        return self.folder.begin(record, base, resume=job.resume, restart=job.restart)

    def read_text(self, corpus: Corpus, length: int) -> tuple[Int32Array, Int32Array | None]:
        """Training and validation text, (N,) int32 each; pieces have `length` tokens."""
        job = self.job
        ids = self._store(corpus, TEXTS[0])
        if job.validation:
            held = replace(corpus, inputs=job.validation)
            return ids, self._store(held, TEXTS[1])
        return hold_out(ids, job.validation_share, length)

    def generate_text(
        self,
        target: PreTrainedModel,
        ids: Int32Array,
        name: str,
        rows: int,
        length: int,
        *,
        seed: int,
        num_beams: int = 1,
    ) -> HeadText:
        """Rows of text that the target generates after prompts from `ids`; none: `ids` themselves.

        Args:
            target: continues prompts.
            ids: (N,) int32.
            name: of the file of an unfinished run.
            rows: number of texts.
            length: tokens of each, the prompt included.
            seed: of the prompts.
            num_beams: 1: greedy.
        """
        if not rows:
            return HeadText(ids)
        return generate_rows(
            target,
            ids,
            self.folder.work / name,
            rows=rows,
            prompt_length=self.job.prompt_length,
            row_length=length,
            num_beams=num_beams,
            seed=seed,
            watcher=self.watcher,
        )

    def read_head_texts(
        self, target: PreTrainedModel, corpus: Corpus, rows: int, length: int, **options: Any
    ) -> HeadTexts:
        """Training and validation text; generated by the target if `rows` is not 0.

        Args:
            target: see `generate_text`, as for rows, length and options.
            corpus: the text.
            rows: see there.
            length: see there.
            options: see there.
        """
        ids, held = self.read_text(corpus, length)
        training = self.generate_text(target, ids, "own-text", rows, length, **options)
        if held is None:
            return HeadTexts(training, None)
        rows = self.job.validation_pieces if rows else 0
        validation = self.generate_text(target, held, "own-validation", rows, length, **options)
        return HeadTexts(training, validation)

    def write_model(self, write: Callable[[Path], None], corpus: Corpus) -> list[str]:
        """Writes a model and the tokenizer of its text into the folder.

        Args:
            write: writes the model.
            corpus: the text.

        Returns:
            Names of the files and folders that were not there before.

        Raises:
            OSError: the folder cannot be written.
        """
        path = self.folder.path
        before = set(path.iterdir())
        write(path)
        tokenizer = corpus.tokenizer
        if isinstance(tokenizer, str | os.PathLike) and Path(tokenizer).name == TOKENIZER:
            with replacing(path / TOKENIZER) as temporary:
                shutil.copyfile(tokenizer, temporary)
        return sorted(file.name for file in set(path.iterdir()) - before)

    def finish(
        self,
        record: dict[str, Any],
        base: str,
        files: list[str],
        report: TrainReport,
        *,
        unit: str,
        **result: Any,
    ) -> None:
        """Writes the loss plot, and last the record of the finished run.

        Args:
            record: see `begin`.
            base: see there.
            files: what `write_model` returned.
            report: of the training.
            unit: what has a loss of its own.
            result: further results, for JSON.

        Raises:
            OSError: the folder cannot be written.
        """
        lines = read_log(self.folder.log)
        write_loss_plot(self.folder.plot, lines, self.title, unit)
        scores = [line["validation"] for line in lines if "validation" in line]
        found = {
            "steps": report.steps,
            "losses": [line["losses"] for line in lines if "losses" in line][-1],
            "validation": scores[-1] if scores else None,
            "precision": report.precision,
            "seconds": round(report.seconds, 3),
        }
        self.folder.finish(record, base, found | result, files)

    def read_result(self) -> dict[str, Any]:
        """What `finish` wrote.

        Raises:
            FileNotFoundError: the record was removed.
        """
        record = read_record(self.folder.path, self.folder.kind)
        if record is None:
            raise FileNotFoundError(
                f"{self.folder.path}: the record of the run was removed; train again"
            )
        result: dict[str, Any] = record["result"]
        return result

    def _store(self, corpus: Corpus, name: str) -> Int32Array:
        path = self.folder.work / name
        store_corpus(corpus, path, corpus.eos_id, self.watcher)
        return map_ids(path)
