"""Decoding steps to draw as lattices: candidates, drafts, and the target's output (figure 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.vocabulary import may_share_ids
from lattice_bpd_kim2024.record.read import Record
from lattice_bpd_kim2024.replay.positions import PositionBatch, Rescorers
from lattice_bpd_kim2024.replay.replay import Recording
from lattice_bpd_kim2024.replay.strategies import STRATEGIES

MOST_STEPS = 200
_ARCS = 8  # drawn per slot, besides those of a draft or of the target
_CONTEXT = 24  # tokens shown before a step
_DRAWN = ("bpd", "neural", "ngram_1best", "p_best_0gram", "p_best_ngram", "tree_0gram", "tree")
_WALKED = ("tree", "p_best_ngram", "tree_0gram", "p_best_0gram", "bpd")

ShowToken = Callable[[int], str]


@dataclass
class Steps:
    """Steps to draw.

    Attributes:
        steps: as report.js reads them.
        labels: of the strategies whose drafts are shown, by name.
        positions: number of recorded positions.
        walked: by task, the strategy whose verifying calls are the steps.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    positions: int = 0
    walked: dict[str, str] = field(default_factory=dict)


def collect_steps(
    records: Mapping[str, Record],
    tasks: Mapping[str, dict[str, Any]],
    lm: NGramLM | None,
    show_token: ShowToken,
    *,
    scorer: Any = None,
    most: int = MOST_STEPS,
) -> Steps:
    """The first steps of decoding each task with its best strategy.

    Args:
        records: by task.
        tasks: of results.json; those without a record are left out.
        lm: n-gram LM; without it the strategies that need one are left out.
        show_token: text of a token id.
        scorer: of strategy "neural", which is left out without one.
        most: maximum number of steps, distributed evenly over tasks.

    Raises:
        ValueError: most below 1, results that do not belong to the record, or an LM of another
            vocabulary.
    """
    if most < 1:
        raise ValueError(f"report: steps is {most}; expected 1 or more")
    shared = [name for name in tasks if name in records]
    result = Steps()
    for number, name in enumerate(shared):
        record = records[name]
        if lm is not None and not may_share_ids(lm.vocab_size, record.manifest.vocab_size):
            raise ValueError(
                f"report: the LM has a vocabulary of {lm.vocab_size}, the record of {name} one of "
                f"{record.manifest.vocab_size}; give the LM that the run was evaluated with (--lm)"
            )
        rescorers = Rescorers(lm, scorer=scorer)
        task = _TaskSteps(name, record, tasks[name], rescorers, show_token)
        result.steps += task.collect(most // len(shared) + (number < most % len(shared)))
        result.labels.update(task.labels)
        result.walked[name] = task.walked
        result.positions += sum(len(text.output) for text in record.texts)
    return result


class _TaskSteps:
    """The steps of one task."""

    def __init__(
        self, name: str, record: Record, task: dict[str, Any], rescorers: Rescorers,
        show_token: ShowToken,
    ) -> None:  # fmt: skip
        self._name, self._texts = name, record.texts
        self._rescorers, self._show = rescorers, show_token
        self._options = {
            strategy: DraftConfig(**options)
            for strategy, options in task["tuned"].items()
            if strategy in STRATEGIES
            and (rescorers.lm or not STRATEGIES[strategy].uses_lm)
            and (rescorers.scorer or not STRATEGIES[strategy].uses_scorer)
        }
        labels = {line["name"]: line["label"] for line in task["strategies"]}
        self.labels = {n: labels[n] for n in _DRAWN if n in labels and n in self._options}
        self.walked = next((strategy for strategy in _WALKED if strategy in self.labels), "bpd")

    def collect(self, most: int) -> list[dict[str, Any]]:
        """The first `most` steps, text by text."""
        if most == 0:  # fewer steps than tasks
            return []
        recording = Recording(self._texts[:most])  # each text has a step or more
        options = self._options.get(self.walked, DraftConfig())
        replayed = recording.replay(STRATEGIES[self.walked], self._rescorers, options)
        positions = replayed.places[replayed.slots > 0][:most]
        steps: list[dict[str, Any]] = [{} for _ in positions]
        for chosen, batch in recording.batches(positions):
            drafts = {}
            for name in self.labels:
                proposal = STRATEGIES[name].draft(batch, self._rescorers, self._options[name])
                drafts[name] = proposal.paths, batch.accept_lengths(proposal.paths)
            for row, index in enumerate(chosen.tolist()):
                of_row = {name: (paths[row], int(n[row])) for name, (paths, n) in drafts.items()}
                steps[index] = self._step(batch, row, of_row)
        return steps

    def _step(
        self, batch: PositionBatch, row: int, drafts: dict[str, tuple[Any, int]]
    ) -> dict[str, Any]:
        """A step as report.js reads it; candidates are named by their rank in their slot."""
        ids, scores = batch.candidates.token_ids[row], batch.candidates.scores[row]
        ranks = [{int(token): rank for rank, token in enumerate(slot)} for slot in ids]
        wanted = [of.get(int(t), -1) for of, t in zip(ranks, batch.wanted[row], strict=True)]
        paths = {name: _rank_paths(tokens, ranks) for name, (tokens, _) in drafts.items()}
        arcs = []
        for slot in range(len(ids)):
            drafted = {path[slot] for of in paths.values() for path in of if len(path) > slot}
            shown = sorted({*range(min(_ARCS, len(ids[slot]))), *drafted, wanted[slot]} - {-1})
            arcs.append(
                [[r, self._show(int(ids[slot][r])), _round(scores[slot][r])] for r in shown]
            )
        number, position = int(batch.numbers[row]), int(batch.positions[row])
        text = batch.texts[number]
        context = np.concatenate([text.prompt, text.output[: position + 1]])[-_CONTEXT:].tolist()
        return {
            "task": self._name, "text": number, "name": text.name, "position": position,
            "context": [self._show(token) for token in context],
            "greedy": [self._show(int(t)) for t in batch.wanted[row] if t >= 0],
            "arcs": arcs, "candidates": int(ids.shape[1]), "wanted": wanted,
            "drafts": {
                name: {"paths": paths[name], "accepted": accepted}
                for name, (_, accepted) in drafts.items()
            },
        }  # fmt: skip


def _rank_paths(paths: Any, ranks: Sequence[dict[int, int]]) -> list[list[int]]:
    """Each path as ranks of its candidates, up to its end; duplicates are dropped."""
    distinct: dict[tuple[int, ...], None] = {}
    for path in paths.tolist():
        known = []
        for slot, token in enumerate(path):
            if token not in ranks[slot]:
                break
            known.append(ranks[slot][token])
        if known:
            distinct[tuple(known)] = None
    return [list(path) for path in distinct]


def _round(score: float) -> float | None:
    """A score with three digits; None for a masked one, since JSON has no -inf."""
    return round(float(score), 3) if np.isfinite(score) else None
