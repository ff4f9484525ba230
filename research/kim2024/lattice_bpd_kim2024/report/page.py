"""The report of a run folder as one HTML page, with the steps that it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from lattice_bpd.atomic_files import write_text
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.extensions import require
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.vocabulary import may_share_ids
from lattice_bpd_kim2024.lab.results import make_tables
from lattice_bpd_kim2024.record.files import Record
from lattice_bpd_kim2024.replay.positions import PositionBatch, Rescorers
from lattice_bpd_kim2024.replay.replay import Recording
from lattice_bpd_kim2024.replay.strategies import STRATEGIES
from lattice_bpd_kim2024.report.charts import draw_charts, draw_overview

_STRATEGIES = ("bpd", "neural", "ngram_1best", "p_best_0gram", "p_best_ngram", "oracle")
_TABLE_4 = {
    "lambada": (3.12, 3.08, 3.05, 3.23, 3.29, 3.67),
    "squad": (2.08, 2.10, 2.07, 2.18, 2.22, 2.45),
    "cnndm": (1.74, 1.73, 1.73, 1.82, 1.83, 2.26),
    "samsum": (1.27, 1.39, 1.29, 1.37, 1.45, 1.95),
    "multinews": (1.10, 1.25, 1.12, 1.13, 1.22, 1.43),
    "xsum": (1.13, 1.23, 1.16, 1.18, 1.26, 1.55),
    "newsroom": (1.08, 1.29, 1.18, 1.11, 1.31, 1.50),
}  # top-16 lattice, 1.5 B models finetuned for each task, 9 heads; LM and 61 M rescorer of C4


def paper_efficiency(task: str, strategy: str) -> float | None:
    """The paper's block efficiency; None where it has none for the task or the strategy."""
    return dict(zip(_STRATEGIES, _TABLE_4.get(task, ()), strict=False)).get(strategy)


def paper_gain(task: str, strategy: str) -> float | None:
    """The paper's gain over BPD, as a fraction of 1; None where it has none."""
    value, bpd = paper_efficiency(task, strategy), paper_efficiency(task, "bpd")
    return None if value is None or not bpd else value / bpd - 1.0


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


REPORT_FILE = "report.html"


def render_report(results: dict[str, Any], steps: Steps | None = None, notes: str = "") -> str:
    """The page as a whole HTML document; text from files is escaped.

    Args:
        results: of results.json.
        steps: steps whose lattices are shown; None for none.
        notes: about missing files, for the reader.

    Raises:
        KeyError: results without a key that research/kim2024/evaluate.md lists.
        ImportError: jinja2 is missing.
    """
    jinja2, markup = (
        require("jinja2", "lattice-bpd-kim2024"),
        require("markupsafe", "lattice-bpd-kim2024").Markup,
    )
    tasks = results["tasks"]
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    page: str = environment.get_template("page.html").render(
        title=f"lattice-bpd: {results.get('model') or 'evaluation'}",
        css=markup(_read("report.css")),
        script=markup(_read("report.js")),
        notes=notes,
        lms=[
            (name, lm.get("order"), f"{sum(lm['num_ngrams']):,}", lm.get("file"))
            for name, lm in _with_domains(results, "lms")
        ],
        scorers=[
            (name, f"{scorer['num_parameters']:,}", scorer.get("file"))
            for name, scorer in _with_domains(results, "scorers")
        ],
        tasks=tasks,
        efficiencies=_efficiencies(tasks),
        overview=list(map(markup, draw_overview(results))),  # escaped by svg.py
        checks=[
            (name, check["strategy"], check["texts"], check["lossless"], check["same_calls"],
             check["tied"], "yes" if check["holds"] else "NO")
            for name, task in tasks.items()
            for check in task.get("live", ())
        ],
        steps=steps if steps is not None and steps.steps else None,
        sections=[
            (name, _summary(task), map(markup, draw_charts(task)))  # escaped by svg.py
            for name, task in tasks.items()
        ],
        tables=make_tables(results),
    )  # fmt: skip
    return page


def write_report(path: Path, page: str) -> None:
    """Write the page; an existing one is replaced only when the new one is complete.

    Raises:
        OSError: the file cannot be written.
    """
    write_text(path, page)


def _read(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _with_domains(results: dict[str, Any], kind: str) -> list[tuple[str, dict[str, Any]]]:
    """The LMs or rescorers of all tasks by name, then those of one task's domain."""
    return [
        *results.get(kind, {}).items(),
        *(
            (f"{name} ({task})", lm)
            for task, values in results["tasks"].items()
            for name, lm in values.get(f"domain_{kind}", {}).items()
        ),
    ]


def _efficiencies(tasks: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Block efficiency, strategies down and tasks across, beside the paper's."""
    labels = {line["name"]: line["label"] for task in tasks.values() for line in task["strategies"]}
    lines = {
        (name, line["name"]): line for name, task in tasks.items() for line in task["strategies"]
    }
    return [
        [label, *(_efficiency(task, name, lines.get((task, name))) for task in tasks)]
        for name, label in labels.items()
    ]


def _efficiency(task: str, name: str, line: dict[str, Any] | None) -> str:
    if line is None:
        return ""
    interval, gain = line["interval"], line["over_bpd"]["gain"]["value"]
    text = f"{interval['value']:.2f} ({interval['low']:.2f}\u2013{interval['high']:.2f})"
    text += "" if name == "bpd" else f", {gain:+.1%}"
    in_paper, gain = paper_efficiency(task, name), paper_gain(task, name)
    if in_paper is not None:
        text += f" \u00b7 paper {in_paper:.2f}"
        text += "" if name == "bpd" or gain is None else f", {gain:+.1%}"
    return text


def _summary(task: dict[str, Any]) -> str:
    performance = task.get("performance")
    metric = f", {performance['metric']} {performance['value']:.2f}" if performance else ""
    return (
        f"{task['texts']} texts reported on, {task['texts_held_out']} held out for tuning, "
        f"{task['tokens']:,} tokens, {task['loop_share']:.0%} of them in loops{metric}."
    )
