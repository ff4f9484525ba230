"""A run in one process that trains on text of a frozen target: folder, text, model files."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from lattice_bpd.atomic_files import replacing
from lattice_bpd.models.blockwise import BlockwiseLM
from lattice_bpd.token_ids import Int32Array
from lattice_bpd.train.block_drafter.texts import BlockTexts
from lattice_bpd.train.heads.parallel import Processes
from lattice_bpd.train.heads.run_folder import RunFolder
from lattice_bpd.train.heads.text_job import TextJob
from lattice_bpd.train.heads.texts import (
    TOKENIZER,
    generate_rows,
    hold_out,
    map_ids,
    store_corpus,
)
from lattice_bpd.train.text.corpus import Corpus
from lattice_bpd.watcher import Watcher


class TextRun:
    """The stages around a training.

    Args:
        job: its description.
        kind: of the run, in the folder's record.
        seed: of the prompts that the target continues.
        processes: the data-parallel processes.
        watcher: progress callbacks.
        device: of the target.
    """

    def __init__(
        self,
        job: TextJob,
        kind: str,
        seed: int,
        processes: Processes,
        watcher: Watcher,
        device: torch.device,
    ) -> None:
        self.folder = RunFolder(Path(job.output), kind)
        self.processes, self.watcher, self.device = processes, watcher, device
        self._text_job, self._seed = job, seed

    def read_text(self, corpus: Corpus, length: int) -> tuple[Int32Array, Int32Array | None]:
        """Training and validation text, (N,) int32 each; pieces have `length` tokens."""
        job = self._text_job
        ids = self._store(corpus, "text.bin")
        if job.validation:
            held = replace(corpus, inputs=job.validation)
            return ids, self._store(held, "validation.bin")
        return hold_out(ids, job.validation_share, length)

    def generate(
        self, target: PreTrainedModel, ids: Int32Array, name: str, rows: int, length: int
    ) -> BlockTexts:
        """Texts of the target with prompts from `ids`; for no rows, `ids` themselves."""
        if not rows:
            return BlockTexts(ids, np.array([len(ids)]))
        text = generate_rows(
            target,
            ids,
            self.folder.work / name,
            rows=rows,
            prompt_length=self._text_job.prompt_length,
            row_length=length,
            seed=self._seed,
            processes=self.processes,
            watcher=self.watcher,
        )
        ends = np.arange(1, rows + 1, dtype=np.int64) * length
        return BlockTexts(text.token_ids, ends, text.first_position)

    def write_model(self, model: BlockwiseLM, corpus: Corpus) -> list[str]:
        """Writes the model and its tokenizer into the folder.

        Returns:
            Names of the files and folders that were not there before.

        Raises:
            OSError: the folder cannot be written.
        """
        path = self.folder.path
        before = set(path.iterdir())
        model.to("cpu").save_pretrained(path)
        if corpus.tokenizer is not None and Path(corpus.tokenizer).name == TOKENIZER:
            with replacing(path / TOKENIZER) as temporary:
                shutil.copyfile(corpus.tokenizer, temporary)
        return sorted(file.name for file in set(path.iterdir()) - before)

    def _store(self, corpus: Corpus, name: str) -> Int32Array:
        path = self.folder.work / name
        self.processes.run_on_first(lambda: store_corpus(corpus, path, corpus.eos_id, self.watcher))
        return map_ids(path)
