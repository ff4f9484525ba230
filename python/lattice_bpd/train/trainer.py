"""The training loop: steps, learning rates, losses, checkpoints."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from lattice_bpd._core import FormatError
from lattice_bpd.atomic_files import check_header, replacing
from lattice_bpd.watcher import Watcher

_FORMAT, _VERSION = "lattice_bpd.checkpoint", 1


@dataclass
class TrainReport:
    """Progress of a training, and its final state.

    Attributes:
        step: steps done.
        steps: steps planned.
        losses: of the last step, in nats per token.
        seconds: time of all steps.
        precision: "fp32" or "bf16".
    """

    step: int
    steps: int
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    precision: str = "fp32"

    @property
    def steps_per_second(self) -> float:
        """Mean rate so far."""
        return self.step / self.seconds if self.seconds else 0.0


@dataclass(eq=False)
class Trainer:
    """Updates weights step by step.

    Attributes:
        weights: the trained weights, by name.
        optimizers: of these weights; each group's rate is its peak.
        report: progress.
        backward: adds the gradients of a step, numbered from 0, to the weights' .grad and
            returns its losses in nats per token by unit, from 1. What it samples must depend on
            the number only: then a resumed run ends with the weights of an uninterrupted one.
        warmup: steps of linear warm-up; then a cosine down to 5 %.
        clip: largest norm of the gradients; 0: none.
        key: of what the result depends on: checkpoints with another key are not read.
        where: the caller's name, for error messages.
        unit: what has a loss of its own.
    """

    weights: Mapping[str, nn.Parameter]
    optimizers: Sequence[Optimizer]
    report: TrainReport
    backward: Callable[[int], Mapping[int, float]]
    warmup: int = 0
    clip: float = 0.0
    key: str = ""
    where: str = "Trainer"
    unit: str = "head"
    _is_updating: bool = field(default=False, init=False)

    def take_step(self) -> dict[int, float]:
        """Runs one step and returns its losses.

        Raises:
            ValueError: a loss that is not finite; the weights are not updated.
        """
        start, report = time.perf_counter(), self.report
        losses = dict(self.backward(report.step))
        if not all(map(math.isfinite, losses.values())):
            raise ValueError(
                f"{self.where}: losses at step {report.step + 1} are {list(losses.values())}; "
                "expected finite numbers; lower the learning rates"
            )
        if self.clip > 0.0:
            nn.utils.clip_grad_norm_(self.weights.values(), self.clip)
        self._is_updating = True
        factor = min(1.0, (report.step + 1) / (self.warmup + 1))
        factor *= 0.525 + 0.475 * math.cos(math.pi * report.step / report.steps)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group.setdefault("peak_lr", group["lr"]) * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        report.step, report.losses = report.step + 1, list(losses.values())
        report.seconds += time.perf_counter() - start
        self._is_updating = False
        return losses

    def run(
        self,
        checkpoint: Path | None = None,
        watcher: Watcher | None = None,
        *,
        stage: str = "training",
        every: int = 0,
        on_step: Callable[[dict[int, float]], str | None] | None = None,
    ) -> None:
        """Trains to the last step, from the checkpoint if there is one; Ctrl-C leaves one.

        Args:
            checkpoint: the file, in a folder that exists; None: neither written nor read.
            watcher: called after each step.
            stage: its name for the watcher.
            every: steps between checkpoints; 0: only the last one.
            on_step: called with the losses of each step; may return a note for the watcher.

        Raises:
            ValueError: a loss that is not finite.
            FormatError: a damaged checkpoint, or that of another model.
            OSError: a checkpoint that cannot be written; the one before is kept.
        """
        report, watcher, stopped = self.report, watcher or Watcher(), False
        if checkpoint is not None and checkpoint.is_file():
            self.load(checkpoint)
        watcher.begin(stage, report.steps - report.step)
        try:
            while report.step < report.steps and not stopped:
                losses = self.take_step()
                first = [f"{self.unit} {one} {loss:.2f}" for one, loss in list(losses.items())[:3]]
                watcher.advance(note=(on_step and on_step(losses)) or ", ".join(first))
                stopped = self.should_stop()
                due = every > 0 and report.step % every == 0
                if checkpoint is not None and (due or stopped or report.step == report.steps):
                    self.save(checkpoint)
        except KeyboardInterrupt:
            if checkpoint is not None and not self._is_updating:
                self.save(checkpoint)
            raise
        watcher.end()

    def should_stop(self) -> bool:
        """Whether to stop after this step and its checkpoint; for subclasses."""
        return False

    def state(self) -> dict[str, Any]:
        """The content of a checkpoint; subclasses may add to it."""
        return {
            "format": _FORMAT, "version": _VERSION, "key": self.key, "report": vars(self.report),
            "weights": {name: weight.detach() for name, weight in self.weights.items()},
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }  # fmt: skip

    def save(self, path: Path) -> None:
        """Replaces a checkpoint."""
        content = io.BytesIO()  # torch hides what went wrong when it writes a file
        torch.save(self.state(), content)
        with replacing(path) as temporary:
            temporary.write_bytes(content.getbuffer())

    def load(self, path: Path) -> dict[str, Any] | None:
        """Restores a checkpoint and returns its content; None if it has another key."""
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            content = check_header(state, _FORMAT, _VERSION)
            if content["key"] != self.key:
                return None
            for name in {*content["weights"], *self.weights}:
                weight, saved = self.weights[name].data, content["weights"][name]
                if saved.shape != weight.shape:
                    raise ValueError(f"{name} has the shape {tuple(saved.shape)}")
                weight.copy_(saved)
            for optimizer, one in zip(self.optimizers, content["optimizers"], strict=True):
                optimizer.load_state_dict(one)
            vars(self.report).update(vars(TrainReport(**content["report"])))
        except Exception as error:  # a damaged file raises errors of many kinds
            raise FormatError(
                f"{path}: the checkpoint cannot be used ({type(error).__name__}: {error}); "
                "expected what training of the same model wrote; remove it to start over"
            ) from error
        return content
