"""Checkpoints from which training resumes bit-identically, and what they need of a trainer.

    FOLDER/checkpoint-00000120/state.safetensors    trained weights and optimizer tensors
                              /state.json           step, precision, losses, log offset

Random numbers and the position in the data follow from the options' seed and the step (`options`).
A checkpoint is written into a temporary folder, flushed to the disk and renamed; only then is the
previous one removed.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from lattice_bpd._core import FormatError
from lattice_bpd.atomic_files import check_header, flush_to_disk
from lattice_bpd_kim2024.heads.options import TrainReport
from lattice_bpd_kim2024.heads.parallel import Processes


class Seeded(Protocol):
    """Options with a seed."""

    @property
    def seed(self) -> int:
        """Seed of all samples."""


class StepTrainer(Protocol):
    """Trains step by step; what a step samples depends on the seed and its number only.

    Attributes:
        report: progress.
        optimizers: of the trained weights.
    """

    report: TrainReport
    optimizers: list[Optimizer]

    @property
    def processes(self) -> Processes:
        """The processes that train together."""

    @property
    def options(self) -> Seeded:
        """With the seed."""

    @property
    def unit(self) -> str:
        """What has a loss of its own: "head" or "slot"."""

    def trained_weights(self) -> dict[str, nn.Parameter]:
        """The trained weights, by name."""

    def choose_precision(self) -> None:
        """Sets report.precision."""

    def take_step(self) -> dict[int, float]:
        """Runs one step; returns losses in nats per token by unit, from 1."""


class Schedule(Protocol):
    """What a run does every so many steps."""

    @property
    def log_every(self) -> int:
        """Steps between lines of the loss log."""

    @property
    def checkpoint_every(self) -> int:
        """Steps between checkpoints; 0: only when a signal stops the run."""

    @property
    def validate_every(self) -> int:
        """Steps between validations; 0: at the end only."""


_FORMAT = "lattice_bpd.head_checkpoint"
_VERSION = 1
_WEIGHTS, _STATE = "state.safetensors", "state.json"
_UNFINISHED = ".checkpoint-"


def save_training(folder: Path, trainer: StepTrainer, log: dict[str, Any]) -> Path:
    """Writes a checkpoint and removes earlier ones.

    Args:
        folder: an existing folder.
        trainer: between two steps.
        log: state of the loss log, for JSON.

    Returns:
        The path of the checkpoint.

    Raises:
        OSError: the folder cannot be written.
    """
    report = trainer.report
    target = folder / f"checkpoint-{report.step:08d}"
    if not target.is_dir():
        temporary = Path(tempfile.mkdtemp(dir=folder, prefix=_UNFINISHED))
        try:
            save_file(dict(_tensors(trainer)), temporary / _WEIGHTS)
            state = {
                "format": _FORMAT,
                "version": _VERSION,
                "step": report.step,
                "steps": report.steps,
                "seed": trainer.options.seed,
                "precision": report.precision,
                "losses": report.losses,
                "seconds": report.seconds,
                "log": log,
            }
            (temporary / _STATE).write_text(json.dumps(state, indent=2) + "\n")
            for path in (temporary / _WEIGHTS, temporary / _STATE, temporary):
                flush_to_disk(path)
            temporary.replace(target)
            flush_to_disk(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    for other in _checkpoints(folder):
        if other != target:
            shutil.rmtree(other)
    return target


def find_checkpoint(folder: Path) -> Path | None:
    """The latest checkpoint of a folder; removes the leftovers of an interrupted save."""
    for unfinished in folder.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    return max(_checkpoints(folder), default=None)


def load_training(path: Path, trainer: StepTrainer) -> dict[str, Any]:
    """Restores a trainer from a checkpoint.

    Args:
        path: the checkpoint.
        trainer: made with the same options on a model of the same sizes.

    Returns:
        The state of the loss log.

    Raises:
        FormatError: missing or damaged files, or those of another model.
    """
    try:
        content = json.loads((path / _STATE).read_text(encoding="utf-8"))
        state = check_header(content, _FORMAT, _VERSION)
        tensors = load_file(path / _WEIGHTS)
        _restore_weights(trainer, tensors)
        _restore_optimizers(trainer, tensors)
        report = trainer.report
        report.step, report.steps = int(state["step"]), int(state["steps"])
        report.precision, report.seconds = str(state["precision"]), float(state["seconds"])
        report.losses = [float(loss) for loss in state["losses"]]
        return cast("dict[str, Any]", state["log"])
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise FormatError(
            f"{path}: the checkpoint cannot be used ({type(error).__name__}: {error}); expected "
            "what training of the same model wrote; start over with --restart"
        ) from error


def _tensors(trainer: StepTrainer) -> Iterator[tuple[str, Tensor]]:
    names = {id(weight): name for name, weight in trainer.trained_weights().items()}
    for name, weight in trainer.trained_weights().items():
        yield f"weight.{name}", _plain(weight)
    for number, optimizer in enumerate(trainer.optimizers):
        for weight in _weights(optimizer):
            for key, value in optimizer.state[weight].items():
                yield f"optimizer.{number}.{key}.{names[id(weight)]}", _plain(value)


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()


@torch.no_grad()
def _restore_weights(trainer: StepTrainer, tensors: dict[str, Tensor]) -> None:
    for name, weight in trainer.trained_weights().items():
        saved = tensors[f"weight.{name}"]
        if saved.shape != weight.shape or saved.dtype != weight.dtype:
            raise ValueError(
                f"{name} is {tuple(saved.shape)} {saved.dtype}; expected {tuple(weight.shape)} "
                f"{weight.dtype}"
            )
        weight.copy_(saved)


def _restore_optimizers(trainer: StepTrainer, tensors: dict[str, Tensor]) -> None:
    names = {id(weight): name for name, weight in trainer.trained_weights().items()}
    for number, optimizer in enumerate(trainer.optimizers):
        state: dict[int, dict[str, Tensor]] = {}
        prefix = f"optimizer.{number}."
        keys = {key[len(prefix) :].split(".", 1)[0] for key in tensors if key.startswith(prefix)}
        for index, weight in enumerate(_weights(optimizer)):
            saved = {key: tensors.get(f"{prefix}{key}.{names[id(weight)]}") for key in keys}
            state[index] = {key: value for key, value in saved.items() if value is not None}
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})


def _weights(optimizer: Optimizer) -> list[nn.Parameter]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("checkpoint-*") if path.is_dir())
