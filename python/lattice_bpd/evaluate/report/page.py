"""The report's page: one file, no network, readable in the dark and on a phone."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from lattice_bpd.evaluate.report.charts import draw_charts
from lattice_bpd.evaluate.report.steps import Steps
from lattice_bpd.evaluate.report.tables import (
    all_tables,
    html_table,
    live_checks,
    strategies_by_tasks,
)
from lattice_bpd.svg import escape

REPORT_FILE = "report.html"


def render_report(results: dict[str, Any], steps: Steps | None = None, notes: str = "") -> str:
    """The page.

    Args:
        results: of results.json.
        steps: whose lattices to draw; None for none.
        notes: what the reader should know of what is missing.

    Returns:
        A whole HTML document. All that comes from files is escaped.

    Raises:
        KeyError: results without what docs/evaluate.md promises.
    """
    title = f"lattice-bpd: {results.get('model') or 'evaluation'}"
    body = [
        f"<h1>{escape(title)}</h1>",
        _introduction(results),
        f'<p class="note">{escape(notes)}</p>' if notes else "",
        "<h2>Strategies and tasks</h2>",
        strategies_by_tasks(results["tasks"]),
        live_checks(results["tasks"]),
        _lattices(steps) if steps is not None and steps.steps else "",
        *(_task(name, task) for name, task in results["tasks"].items()),
        "<h2>All tables</h2>",
        all_tables(results),
    ]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{_resource('report.css')}</style></head><body>",
            *(part for part in body if part),
            "</body></html>\n",
        ]
    )


def write_report(path: Path, page: str) -> None:
    """Write the page; an old one stays until the new one is complete.

    Raises:
        OSError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}")
    try:
        temporary.write_text(page, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _introduction(results: dict[str, Any]) -> str:
    lms = [
        (name, lm.get("order"), f"{sum(lm['num_ngrams']):,}", lm.get("file"))
        for name, lm in results["lms"].items()
    ]
    table = html_table(("LM", "order", "n-grams", "file"), lms) if lms else ""
    return (
        "<p>Block efficiency is decoded tokens / calls of the target; the exact token of each call "
        "counts, and so does the call that reads the prompt. Intervals are 95 % bootstrap "
        "intervals over texts. Weights were tuned on other texts than those reported on. "
        f"The paper is Kim et al. 2024.</p>\n{table}"
    )


def _task(name: str, task: dict[str, Any]) -> str:
    charts = "\n".join(f"<figure>{chart}</figure>" for chart in draw_charts(task))
    performance = task.get("performance")
    judged = f", {performance['metric']} {performance['value']:.2f}" if performance else ""
    return (
        f"<h2>{escape(name)}</h2>\n<p>{task['texts']} texts reported on, "
        f"{task['texts_held_out']} held out for tuning, {task['tokens']:,} tokens, "
        f"{task['loop_share']:.0%} of them in loops{escape(judged)}.</p>\n"
        f'<div class="charts">{charts}</div>'
    )


def _lattices(steps: Steps) -> str:
    """The drawing of single steps: its frame, its data and its script."""
    data = {"labels": steps.labels, "steps": steps.steps}
    # "<" would end the element or begin another one, whatever stands around it.
    embedded = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    options = "".join(
        f'<option value="{escape(name)}">{escape(label)}</option>'
        for name, label in reversed(steps.labels.items())
    )
    stops = ", ".join(dict.fromkeys(steps.walked.values()))
    return f"""<h2>Lattices</h2>
<p>The first {len(steps.steps):,} of {steps.positions:,} recorded positions, where decoding with
{escape(stops)} stops. Arcs stand by falling head score, the widest is the most likely; colour marks
drafts, green what the target wrote, bold green what was kept. The address takes #step=N.</p>
<p class="controls"><label>step <input id="step" type="range" min="0" max="{len(steps.steps) - 1}"
value="0"></label> <output id="number" for="step"></output>
<label>drafts <select id="strategy">{options}</select></label></p>
<p id="about"></p>
<div class="scroll" id="lattice" data-step=""></div>
<script type="application/json" id="steps">{embedded}</script>
<script>
{_resource("report.js")}</script>"""


def _resource(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
