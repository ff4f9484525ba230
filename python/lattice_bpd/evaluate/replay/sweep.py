"""Many replays at once: strategies x numbers x LMs, shared out over the cores."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.evaluate.replay.positions import Rescorers
from lattice_bpd.evaluate.replay.replay import Recording, Replayed
from lattice_bpd.evaluate.replay.strategies import Strategy
from lattice_bpd.lm.ngram import NGramLM

_WAIT = 0.2  # seconds between looks for an interrupt


@dataclass(frozen=True)
class Point:
    """One replay of a sweep.

    Attributes:
        strategy: how drafts are made.
        options: its numbers.
        lm: name of the LM; empty where the strategy uses none.
    """

    strategy: Strategy
    options: DraftConfig
    lm: str = ""

    def to_json(self) -> dict[str, Any]:
        """What tells it from others."""
        found: dict[str, Any] = {"strategy": self.strategy.name, **self.strategy.kept(self.options)}
        return {**found, "lm": self.lm} if self.lm else found


def make_grid(
    strategies: Sequence[Strategy], values: Mapping[str, Sequence[Any]], lms: Sequence[str] = ("",)
) -> list[Point]:
    """Every combination that makes a difference.

    Args:
        strategies: any.
        values: for fields of DraftConfig the values to try; the others keep their defaults.
        lms: names of the LMs to try, for strategies that use one.

    Returns:
        A point for each; knobs that a strategy does not have are not varied for it.
    """
    points = []
    for strategy in strategies:
        knobs = [knob for knob in strategy.option_names if knob in values]
        names = lms if strategy.uses_lm else ("",)
        for chosen in itertools.product(names, *(values[knob] for knob in knobs)):
            options = replace(DraftConfig(), **dict(zip(knobs, chosen[1:], strict=True)))
            points.append(Point(strategy, options, chosen[0]))
    return points


def sweep(
    recordings: Sequence[Recording],
    points: Sequence[Point],
    lms: Mapping[str, NGramLM],
    rescorers: Rescorers | None = None,
    *,
    workers: int = 0,
    on_point: Callable[[], None] | None = None,
) -> list[list[Replayed]]:
    """Replay all points on all recordings.

    Args:
        recordings: one or more.
        points: what to replay.
        lms: by the names that points use.
        rescorers: what strategies use besides LMs.
        workers: threads; 0 for all cores. Each replay stays on one.
        on_point: called in the caller's thread after each replay.

    Returns:
        For each recording, a Replayed for each point, in order.

    Raises:
        ValueError: options out of range, or something that a strategy needs is missing.
    """
    rescorers = replace(rescorers or Rescorers(), threads=1)

    def run(recording: Recording, point: Point) -> Replayed:
        used = replace(rescorers, lm=lms[point.lm]) if point.lm else rescorers
        return recording.replay(point.strategy, used, point.options)

    pool = ThreadPoolExecutor(workers or os.cpu_count() or 1)
    try:
        jobs = [[pool.submit(run, known, point) for point in points] for known in recordings]
        waiting: set[Future[Replayed]] = {job for row in jobs for job in row}
        while waiting:
            done, waiting = wait(waiting, _WAIT, FIRST_COMPLETED)
            for job in done:
                job.result()
                if on_point is not None:
                    on_point()
        return [[job.result() for job in row] for row in jobs]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
