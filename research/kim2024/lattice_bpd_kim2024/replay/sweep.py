"""Many replays at once: strategies x options x LMs, distributed over the cores."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd_kim2024.replay.positions import Rescorers
from lattice_bpd_kim2024.replay.replay import Recording, Replayed
from lattice_bpd_kim2024.replay.scorers import Scorers
from lattice_bpd_kim2024.replay.strategies import Strategy

_WAIT = 0.2  # seconds between checks for an interrupt


@dataclass(frozen=True)
class Point:
    """One replay of a sweep.

    Attributes:
        strategy: how drafts are made.
        options: its numbers.
        lm: name of the LM; empty where the strategy uses none.
        scorer: name of the scorer; empty where the strategy uses none.
    """

    strategy: Strategy
    options: DraftConfig
    lm: str = ""
    scorer: str = ""

    def to_json(self) -> dict[str, Any]:
        """What tells it from others."""
        found: dict[str, Any] = {"strategy": self.strategy.name, **self.strategy.kept(self.options)}
        names = {"lm": self.lm, "scorer": self.scorer}
        return {**found, **{key: name for key, name in names.items() if name}}

    def rescorers(
        self, shared: Rescorers, lms: Mapping[str, NGramLM], scorers: Scorers
    ) -> Rescorers:
        """What the strategy rescores with.

        Args:
            shared: what all points share.
            lms: by name.
            scorers: by strategy and name.
        """
        lm = lms[self.lm] if self.lm else shared.lm
        if not self.scorer:
            return replace(shared, lm=lm)
        scorer = scorers[self.strategy.name][self.scorer]
        return replace(shared, lm=lm, scorer=scorer)


def make_grid(
    strategies: Sequence[Strategy],
    values: Mapping[str, Sequence[Any]],
    lms: Sequence[str] = ("",),
    scorers: Mapping[str, Iterable[str]] | None = None,
) -> list[Point]:
    """Every combination that makes a difference.

    Args:
        strategies: any.
        values: for fields of DraftConfig the values to try; the others keep their defaults.
        lms: names of the LMs to try, for strategies that use one.
        scorers: names of the scorers to try, by the strategy that uses them.

    Returns:
        A point for each; options that a strategy does not have are not varied for it.
    """
    points = []
    for strategy in strategies:
        varied = [name for name in strategy.option_names if name in values]
        names = lms if strategy.uses_lm else ("",)
        rescorers: Iterable[str] = ("",)
        if strategy.uses_scorer:
            names, rescorers = names[:1], (scorers or {}).get(strategy.name, ())
        for lm, scorer, *chosen in itertools.product(
            names, rescorers, *(values[name] for name in varied)
        ):
            options = replace(DraftConfig(), **dict(zip(varied, chosen, strict=True)))
            points.append(Point(strategy, options, lm, scorer))
    return points


def sweep(
    recordings: Sequence[Recording],
    points: Sequence[Point],
    lms: Mapping[str, NGramLM],
    rescorers: Rescorers | None = None,
    *,
    scorers: Scorers | None = None,
    workers: int = 0,
    on_point: Callable[[], None] | None = None,
) -> list[list[Replayed]]:
    """Replay all points on all recordings.

    Args:
        recordings: one or more.
        points: what to replay.
        lms: by the names that points use.
        rescorers: what strategies use besides LMs and scorers.
        scorers: by the strategies and names that points use. Replays are fast where the recordings
            have been read with them.
        workers: threads; 0 for all cores. Each replay stays on one.
        on_point: called in the caller's thread after each replay.

    Returns:
        For each recording, a Replayed for each point, in order.

    Raises:
        ValueError: options out of range, or something that a strategy needs is missing.
    """
    rescorers = replace(rescorers or Rescorers(), threads=1)

    def run(recording: Recording, point: Point) -> Replayed:
        used = point.rescorers(rescorers, lms, scorers or {})
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
