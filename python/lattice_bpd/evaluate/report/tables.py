"""Tables of a report: results.json as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lattice_bpd.evaluate.lab.result_tables import make_tables
from lattice_bpd.evaluate.report.paper_figures import paper_efficiency, paper_gain
from lattice_bpd.svg import escape


def html_table(columns: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> str:
    """A table that scrolls where the screen is narrow.

    Args:
        columns: names.
        rows: cells; text stands at the left, floats are rounded, None is left empty.
        caption: above it.
    """
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in rows)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll"><table>{title}<thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def strategies_by_tasks(tasks: dict[str, dict[str, Any]]) -> str:
    """Block efficiency, strategies down and tasks across, with intervals and the paper's."""
    labels = {line["name"]: line["label"] for task in tasks.values() for line in task["strategies"]}
    rows = []
    for name, label in labels.items():
        cells: list[object] = [label]
        for task_name, task in tasks.items():
            line = next((line for line in task["strategies"] if line["name"] == name), None)
            cells.append("" if line is None else _efficiency(task_name, name, line))
        rows.append(cells)
    return html_table(("strategy", *tasks), rows, "block efficiency (95 % interval), gain over BPD")


def _efficiency(task: str, name: str, line: dict[str, Any]) -> str:
    interval, gain = line["interval"], line["over_bpd"]["gain"]["value"]
    text = f"{interval['value']:.2f} ({interval['low']:.2f}\u2013{interval['high']:.2f})"
    if name != "bpd":
        text += f", {gain:+.1%}"
    theirs, their_gain = paper_efficiency(task, name), paper_gain(task, name)
    if theirs is not None:
        text += f" \u00b7 paper {theirs:.2f}"
        if name != "bpd" and their_gain is not None:
            text += f", {their_gain:+.1%}"
    return text


def live_checks(tasks: dict[str, dict[str, Any]]) -> str:
    """Which prompts were decoded live, and whether the output was greedy's; empty without any."""
    rows = [
        (name, check["strategy"], check["texts"], check["lossless"], check["same_calls"],
         check["tied"], "yes" if check["holds"] else "NO")
        for name, task in tasks.items()
        for check in task.get("live", ())
    ]  # fmt: skip
    columns = ("task", "strategy", "texts", "as greedy", "calls as replayed", "tied", "holds")
    if not rows:
        return ""
    texts, same = sum(row[2] for row in rows), sum(row[3] for row in rows)
    summary = f"<summary>{same} of {texts} texts decoded live came out as greedy writes them"
    return f"<details>{summary}</summary>{html_table(columns, rows)}</details>"


def all_tables(results: dict[str, Any]) -> str:
    """Every table that evaluate writes as CSV, folded up."""
    return "\n".join(
        f"<details><summary>{escape(table.name)}: {escape(table.caption)}</summary>"
        f"{html_table(table.columns, table.rows)}</details>"
        for table in make_tables(results)
    )


def _cell(value: object) -> str:
    if isinstance(value, str):
        return f'<td class="text">{escape(value)}</td>'
    if value is None:
        return "<td></td>"
    return f"<td>{value:.3f}</td>" if isinstance(value, float) else f"<td>{escape(value)}</td>"
