"""What the training loop and the checkpoints need of a trainer."""

from __future__ import annotations

from typing import Protocol

from torch import nn
from torch.optim import Optimizer

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
