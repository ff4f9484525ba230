"""Steps whose lattices a report draws: candidates, drafts, and what the target wrote (figure 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lattice_bpd.evaluate.record.read import Record
from lattice_bpd.evaluate.replay.positions import PositionBatch, Rescorers
from lattice_bpd.evaluate.replay.replay import Recording
from lattice_bpd.evaluate.replay.settings import DraftOptions
from lattice_bpd.evaluate.replay.strategies import STRATEGIES, Strategy
from lattice_bpd.lm.ngram import NGramLM

MOST_STEPS = 200
_ARCS = 8  # drawn in each slot, besides those that a draft or the target takes
_CONTEXT = 24  # tokens shown before a step
_DRAWN = ("bpd", "ngram_1best", "p_best_0gram", "p_best_ngram", "tree_0gram", "tree")
_WALKED = ("tree", "p_best_ngram", "tree_0gram", "p_best_0gram", "bpd")

ShowToken = Callable[[int], str]


@dataclass(frozen=True)
class Steps:
    """Steps to draw.

    Attributes:
        steps: as the page's script reads them.
        labels: of the strategies whose drafts they hold, by name.
        positions: recorded positions that there are in all.
        walked: the strategies whose decoding stops at these steps, by task.
    """

    steps: list[dict[str, Any]]
    labels: dict[str, str]
    positions: int
    walked: dict[str, str]


def collect_steps(
    records: Mapping[str, Record],
    tasks: Mapping[str, dict[str, Any]],
    lm: NGramLM | None,
    show_token: ShowToken,
    *,
    most: int = MOST_STEPS,
) -> Steps:
    """The first steps of decoding each task with its best kind of drafts.

    Args:
        records: by task.
        tasks: of results.json; those without a record are left out.
        lm: n-gram LM; strategies that need one are left out without.
        show_token: text of a token id.
        most: steps in all, shared out evenly over tasks.

    Returns:
        Steps.

    Raises:
        ValueError: most below 1, results that do not belong to the record, or an LM of another
            vocabulary.
    """
    if most < 1:
        raise ValueError(f"report: steps is {most}; expected 1 or more")
    shared = [name for name in tasks if name in records]
    found: list[dict[str, Any]] = []
    labels: dict[str, str] = {}
    walked: dict[str, str] = {}
    for number, name in enumerate(shared):
        record, task = records[name], tasks[name]
        if lm is not None and lm.vocab_size != record.manifest.vocab_size:
            raise ValueError(
                f"report: the LM has a vocabulary of {lm.vocab_size}, the record of {name} one of "
                f"{record.manifest.vocab_size}; give the LM that the run was evaluated with (--lm)"
            )
        share = most // len(shared) + (number < most % len(shared))
        drawer = _Drawer(name, record, task, Rescorers(lm), show_token)
        walked[name] = drawer.walked
        labels.update(drawer.labels)
        found += drawer.steps(share)
    total = sum(len(text.output) for name in shared for text in records[name].texts)
    return Steps(found, labels, total, walked)


class _Drawer:
    """Draws steps of one task."""

    def __init__(
        self, name: str, record: Record, task: dict[str, Any], rescorers: Rescorers,
        show_token: ShowToken,
    ) -> None:  # fmt: skip
        self._name, self._rescorers, self._show = name, rescorers, show_token
        self._texts = record.texts
        self._options = {
            line: DraftOptions(**options)
            for line, options in task["tuned"].items()
            if line in STRATEGIES
        }
        lines = {line["name"]: line["label"] for line in task["strategies"]}
        self.labels = {n: lines[n] for n in _DRAWN if n in lines and self._can(STRATEGIES[n])}
        self.walked = next((name for name in _WALKED if name in self.labels), "bpd")

    def _can(self, strategy: Strategy) -> bool:
        known = strategy.name in self._options
        return known and (self._rescorers.lm is not None or not strategy.uses_lm)

    def steps(self, most: int) -> list[dict[str, Any]]:
        """At most so many, text by text."""
        recording = Recording(self._texts[:most])  # each text has a step or more
        strategy = STRATEGIES[self.walked]
        options = self._options.get(self.walked, DraftOptions())
        replayed = recording.replay(strategy, self._rescorers, options)
        usable = replayed.slots > 0
        places = replayed.places[usable][:most]
        found: list[dict[str, Any]] = [{} for _ in places]
        for chosen, batch in recording.batches(places):
            drafts = {name: self._drafts(batch, name) for name in self.labels}
            for row, place in enumerate(chosen.tolist()):
                of_row = {name: (paths[row], kept[row]) for name, (paths, kept) in drafts.items()}
                found[place] = self._step(batch, row, of_row)
        return found

    def _drafts(self, batch: PositionBatch, name: str) -> tuple[Any, Any]:
        """Paths (B, p, S) and accepted lengths (B,)."""
        proposal = STRATEGIES[name].draft(batch, self._rescorers, self._options[name])
        return proposal.paths, batch.accept_lengths(proposal.paths)

    def _step(
        self, batch: PositionBatch, row: int, drafts: dict[str, tuple[Any, Any]]
    ) -> dict[str, Any]:
        ids, scores = batch.candidates.token_ids[row], batch.candidates.scores[row]
        ranks = [{int(token): rank for rank, token in enumerate(slot)} for slot in ids]
        wanted = [of.get(int(t), -1) for of, t in zip(ranks, batch.wanted[row], strict=True)]
        paths = {name: _rank_paths(found, ranks) for name, (found, _) in drafts.items()}
        arcs = []
        for slot in range(len(ids)):
            taken = {path[slot] for of in paths.values() for path in of if len(path) > slot}
            shown = sorted({*range(min(_ARCS, len(ids[slot]))), *taken, wanted[slot]} - {-1})
            arcs.append(
                [[r, self._show(int(ids[slot][r])), _number(scores[slot][r])] for r in shown]
            )
        text, at = batch.texts[int(batch.numbers[row])], int(batch.positions[row])
        context = np.concatenate([text.prompt, text.output[: at + 1]])[-_CONTEXT:].tolist()
        return {
            "task": self._name, "text": int(batch.numbers[row]), "name": text.name, "position": at,
            "context": [self._show(token) for token in context],
            "greedy": [self._show(int(t)) for t in batch.wanted[row] if t >= 0],
            "arcs": arcs, "candidates": int(ids.shape[1]), "wanted": wanted,
            "drafts": {
                name: {"paths": paths[name], "accepted": int(kept)}
                for name, (_, kept) in drafts.items()
            },
        }  # fmt: skip


def _rank_paths(paths: Any, ranks: Sequence[dict[int, int]]) -> list[list[int]]:
    """Each path as ranks of its candidates, up to its end; no path twice."""
    found: dict[tuple[int, ...], None] = {}
    for path in paths.tolist():
        known = []
        for slot, token in enumerate(path):
            if token not in ranks[slot]:
                break
            known.append(ranks[slot][token])
        if known:
            found[tuple(known)] = None
    return [list(path) for path in found]


def _number(score: float) -> float | None:
    """A score with three digits; None for one that is masked, which JSON cannot hold."""
    return round(float(score), 3) if np.isfinite(score) else None
