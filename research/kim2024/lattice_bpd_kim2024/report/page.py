"""The HTML page of an evaluation; it needs no other file and no network."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from lattice_bpd.atomic_files import write_text
from lattice_bpd.extras import require
from lattice_bpd_kim2024.lab.result_tables import make_tables
from lattice_bpd_kim2024.report.charts import draw_charts, draw_overview
from lattice_bpd_kim2024.report.paper_figures import paper_efficiency, paper_gain
from lattice_bpd_kim2024.report.steps import Steps

REPORT_FILE = "report.html"


def render_report(results: dict[str, Any], steps: Steps | None = None, notes: str = "") -> str:
    """The page as a whole HTML document; text from files is escaped.

    Args:
        results: of results.json.
        steps: steps whose lattices are shown; None for none.
        notes: about missing files, for the reader.

    Raises:
        KeyError: results without a key that docs/evaluate.md lists.
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
