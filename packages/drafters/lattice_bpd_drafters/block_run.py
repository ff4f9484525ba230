"""Training of block drafters from files to files, or on token ids in memory.

Validation is the block efficiency of the most likely tokens, by simulation on greedy text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lattice_bpd.models.blockwise import BlockwiseLM
from lattice_bpd.token_ids import Int32Array
from lattice_bpd.train.corpus import Corpus
from lattice_bpd.watcher import Watcher
from lattice_bpd_drafters.block_drafter import BlockDrafter
from lattice_bpd_drafters.block_training import (
    BlockTrainer,
    BlockTrainOptions,
    config_for,
    embedding_rows,
    find_unused_token,
    piece_length,
    take_labels,
)
from lattice_bpd_drafters.config import BlockDrafterConfig
from lattice_bpd_drafters.features import read_features
from lattice_bpd_drafters.texts import BlockTexts, make_texts
from lattice_bpd_kim2024.heads.job import FrozenTargetJob
from lattice_bpd_kim2024.heads.run_folder import fingerprint
from lattice_bpd_kim2024.heads.starting_model import load_base
from lattice_bpd_kim2024.heads.text_run import TextRun, run_in_processes
from lattice_bpd_kim2024.heads.texts import open_corpus
from lattice_bpd_kim2024.heads.trainer import seeded


@dataclass(frozen=True)
class BlockJob(FrozenTargetJob):
    """A training of a block drafter: see FrozenTargetJob for target, text and output folder.

    Attributes:
        num_layers: layers of the drafter.
        block_size: K, the anchor and K - 1 slots.
        hidden_layers: the target's layers whose outputs are read, from 0; empty: five evenly
            spaced ones from the second to the third to last, or the first, middle and last of a
            target with fewer than eight.
        intermediate_size: width of the drafter's MLPs; None: the target's.
        mask_token_id: the token that fills blocks; None: the largest that is not in the text.
        options: of the training; first_position is set to prompt_length - 1 for texts that the
            target generates.
    """

    num_layers: int = 2
    block_size: int = 9
    hidden_layers: Sequence[int] = ()
    intermediate_size: int | None = None
    mask_token_id: int | None = None
    options: BlockTrainOptions = field(default_factory=BlockTrainOptions)

    @property
    def validate_every(self) -> int:
        """Steps between validations; 0: at the end only."""
        return self.options.validate_every

    @property
    def train_options(self) -> BlockTrainOptions:
        """The options with the first position of the texts."""
        first = self.prompt_length - 1 if self.own_rows else 0
        return dataclasses.replace(self.options, first_position=first)

    def check(self) -> None:
        """Validates the options before anything is read.

        Raises:
            ValueError: the message names the option.
        """
        self.options.check()
        self.check_minimum("num_layers", 1)
        self.check_minimum("block_size", 2)
        super().check()

    def record(self, corpus: Corpus) -> dict[str, Any]:
        """Everything that the result depends on, for JSON; it must match to resume a run."""
        return self.describe(corpus, asdict(self.train_options))


_BLOCKS = 256  # blocks per pass


class BlockScores(NamedTuple):
    """Scores on texts that the target generated.

    Attributes:
        block_efficiency: tokens per call of the target when the most likely token of each slot is
            drafted.
        accuracies: share of correct tokens of each slot, 1..H, at all positions.
        positions: number of anchors.
    """

    block_efficiency: float
    accuracies: list[float]
    positions: int

    def for_log(self) -> dict[str, Any]:
        """For the loss log, with accuracies by slot."""
        accuracies = {str(slot): share for slot, share in enumerate(self.accuracies, 1)}
        return {
            "block_efficiency": self.block_efficiency,
            "accuracies": accuracies,
            "positions": self.positions,
        }


@torch.no_grad()
def measure_drafter(
    drafter: BlockDrafter, target: PreTrainedModel, texts: BlockTexts, length: int
) -> BlockScores:
    """Simulates greedy decoding of texts.

    Args:
        drafter: attached to the target; its mode is restored.
        target: in evaluation mode.
        texts: greedy text of the target after `first_position`.
        length: tokens of each text that are read at most.
    """
    was_training = drafter.training
    drafter.eval()
    calls = tokens = 0
    matches = []
    for start, size in zip(texts.starts, np.minimum(texts.lengths, length), strict=True):
        ids = torch.from_numpy(texts.token_ids[start : start + size].astype(np.int64))[None]
        is_match = find_matches(drafter, target, ids.to(target.device), texts.first_position)
        steps = simulate(is_match)
        calls, tokens = calls + len(steps), tokens + sum(steps)
        matches.append(is_match)
    drafter.train(was_training)
    joined = np.concatenate(matches)
    return BlockScores(tokens / calls, joined.mean(0).tolist(), len(joined))


def simulate(is_match: npt.NDArray[np.bool_]) -> list[int]:
    """Tokens of each decoding step.

    Args:
        is_match: (N, H) bool, correct slots of the blocks at consecutive anchors.
    """
    steps, anchor = [], 0
    accepted = is_match.cumprod(axis=1).sum(axis=1)
    while anchor < len(accepted):
        steps.append(int(accepted[anchor]) + 1)
        anchor += steps[-1]
    return steps


def find_matches(
    drafter: BlockDrafter, target: PreTrainedModel, ids: Tensor, first: int
) -> npt.NDArray[np.bool_]:
    """Which slots are correct at consecutive anchors.

    Args:
        drafter: attached to the target.
        target: in evaluation mode.
        ids: (1, T) int64, a text of the target.
        first: the first anchor; the last is followed by H tokens.

    Returns:
        (N, H) bool.
    """
    features = read_features(target, ids, drafter.hidden_layers).features
    anchors = torch.arange(first, ids.shape[1] - drafter.num_slots, device=ids.device)[None]
    parts = []
    for part in torch.split(anchors, _BLOCKS, dim=1):
        logits = drafter.logits(drafter.train_states(features, ids, part))
        drafts = drafter.to_target_ids(logits.argmax(-1))
        parts.append(drafts == take_labels(ids, part, drafter.num_slots))
    matches: npt.NDArray[np.bool_] = torch.cat(parts, dim=1)[0].cpu().numpy()
    return matches


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
            trainer.run_in(self.folder, job, _validation(trainer, validation), self.watcher)
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


_Texts = Sequence[npt.ArrayLike] | npt.NDArray[np.integer]


def train_block_drafter(
    target: PreTrainedModel,
    texts: _Texts,
    config: BlockDrafterConfig,
    options: BlockTrainOptions | None = None,
    *,
    validation: _Texts | None = None,
    watcher: Watcher | None = None,
) -> BlockDrafter:
    """Trains a new block drafter; the target is unchanged.

    Greedy verification accepts only what the target generates, so texts that it generated train
    the best drafters (`generate_texts`).

    Args:
        target: a causal LM on any device.
        texts: token ids of each text, or the rows (M, T) of an array.
        config: the drafter's sizes; it uses the target's embeddings.
        options: see BlockTrainOptions; None: the defaults.
        validation: texts that the target generated, to measure block efficiency on; it is in the
            note of the watcher's progress.
        watcher: called after each step.

    Returns:
        The drafter, in float32 on the target's device, attached to it, in evaluation mode.

    Raises:
        TypeError: ids that are not integers.
        ValueError: options out of range, texts that do not fit, a config of another target, or
            losses that are not finite.
    """
    where = "train_block_drafter"
    options = options or BlockTrainOptions()
    drafter = new_drafter(target, config, options.seed)
    training = make_texts(texts, options.first_position, where)
    held = None if validation is None else make_texts(validation, options.first_position, where)
    if held is not None:
        held.check(drafter.num_slots, drafter.config.vocab_size or 0, f"{where}: validation")
    with BlockTrainer(drafter, target, training, options, where=where) as trainer:
        score = ""

        def after_step(losses: dict[int, float]) -> str:
            nonlocal score
            step, every = trainer.report.step, options.validate_every
            if held is not None and (step == options.steps or (every and step % every == 0)):
                scores = measure_drafter(drafter, target, held, trainer.length)
                score = f", {scores.block_efficiency:.2f} tokens per call"
            return f"slot 1 {losses[1]:.2f}{score}"

        trainer.run(watcher=watcher, on_step=after_step)
    return drafter


def new_drafter(target: PreTrainedModel, config: BlockDrafterConfig, seed: int) -> BlockDrafter:
    """A drafter with random weights, in float32 on the target's device, attached to it.

    Raises:
        ValueError: a config whose values do not fit together, or of another target.
    """
    with seeded(seed):
        drafter = BlockDrafter(config)
    drafter.to(target.device)
    drafter.attach(target)
    return drafter
