"""The tables of an evaluation; their numbers are those of Kim et al. 2024."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lattice_bpd.evaluate.costs.cost_model import SEQUENCE_LENGTHS

Cell = str | float | int | None


@dataclass(frozen=True)
class ResultTable:
    """A table of results.

    Attributes:
        name: of its files.
        caption: what it shows.
        columns: names.
        rows: cells; floats are rounded in LaTeX only.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]

    def to_csv(self) -> str:
        """Comma-separated values with a line of names."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return text.getvalue()

    def to_latex(self) -> str:
        """A tabular with booktabs rules."""
        lines = [
            f"% {self.caption}",
            rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}",
            r"\toprule",
            " & ".join(map(_escape, self.columns)) + r" \\",
            r"\midrule",
            *(" & ".join(map(_latex_cell, row)) + r" \\" for row in self.rows),
            r"\bottomrule",
            r"\end{tabular}",
        ]
        return "\n".join(lines) + "\n"


def make_tables(results: dict[str, Any]) -> list[ResultTable]:
    """The paper's tables that these results can fill."""
    tasks = results["tasks"]
    tables = [
        _performance(tasks),
        _main(tasks),
        _weights(tasks),
        _curve(tasks, "by_heads", "table_10_heads", "BPD by number of heads", "num_heads"),
        _costs_table(results["costs"]),
        _entropies(tasks),
        _curve(tasks, "oracle_by_top_k", "figure_6_oracle", "oracle by k and heads", "top_k"),
        _curve(tasks, "by_num_drafts", "figure_7_num_drafts", "lists by p", "num_drafts"),
        _curve(tasks, "by_max_nodes", "trees_by_max_nodes", "trees by N", "max_nodes"),
        _curve(tasks, "by_lm", "table_7_9_lms", "by LM: orders and domains", "lm"),
        _acceptance(tasks),
        _loops(tasks),
        _rules(tasks),
    ]
    if all("repetition" in task for task in tasks.values()):
        tables += [_repetition(tasks), _wins(tasks)]
    return [table for table in tables if table.rows]


def line_of(task: dict[str, Any], name: str) -> dict[str, Any]:
    """The line of a strategy in results.json."""
    found: dict[str, Any] = next(line for line in task["strategies"] if line["name"] == name)
    return found


def _performance(tasks: dict[str, Any]) -> ResultTable:
    rows: list[tuple[Cell, ...]] = []
    for name, task in tasks.items():
        metric = task.get("performance") or {"metric": None, "value": None}
        bpd = line_of(task, "bpd")["interval"]
        cells = (bpd["value"], bpd["low"], bpd["high"], task["loop_share"])
        rows.append((name, metric["metric"], metric["value"], *cells))
    columns = ("task", "metric", "performance", "bpd", "low", "high", "loop_share")
    return ResultTable("table_1_tasks", "performance and block efficiency of BPD", columns, rows)


def _main(tasks: dict[str, Any]) -> ResultTable:
    rows: list[tuple[Cell, ...]] = []
    for name, task in tasks.items():
        for line in task["strategies"]:
            interval, gain = line["interval"], line["over_bpd"]
            rows.append(
                (
                    name, line["name"], line["label"], line["block_efficiency"], interval["low"],
                    interval["high"], gain["gain"]["value"], gain["gain"]["low"],
                    gain["gain"]["high"], gain["p_value"], line["draft_tokens_per_call"],
                )
            )  # fmt: skip
    columns = (
        "task", "strategy", "label", "block_efficiency", "low", "high", "gain_over_bpd",
        "gain_low", "gain_high", "p_value", "draft_tokens_per_call",
    )  # fmt: skip
    return ResultTable("table_4_strategies", "block efficiency by strategy", columns, rows)


def _weights(tasks: dict[str, Any]) -> ResultTable:
    rows: list[tuple[Cell, ...]] = [
        (name, tried["strategy"], tried["alpha"], tried.get("temperature"), value,
         value == max(other["block_efficiency"] for other in sweep))
        for name, task in tasks.items()
        for sweep in task["block_efficiency_by_weights"].values()
        for tried in sweep
        for value in [tried["block_efficiency"]]
        if "alpha" in tried
    ]  # fmt: skip
    columns = ("task", "strategy", "alpha", "temperature", "block_efficiency", "best")
    return ResultTable("table_8_weights", "weights tried on held-out texts", columns, rows)


def _curve(tasks: dict[str, Any], key: str, name: str, caption: str, knob: str) -> ResultTable:
    rows: list[tuple[Cell, ...]] = [
        (task_name, line["strategy"], line["num_heads"], line.get(knob),
         line["block_efficiency"], line["draft_tokens_per_call"])
        for task_name, task in tasks.items()
        for line in task[key]
    ]  # fmt: skip
    heads = () if knob == "num_heads" else ("num_heads",)
    if not heads:
        rows = [(row[0], row[1], *row[3:]) for row in rows]
    columns = ("task", "strategy", *heads, knob, "block_efficiency", "draft_tokens_per_call")
    return ResultTable(name, caption, columns, rows)


def _repetition(tasks: dict[str, Any]) -> ResultTable:
    rows: list[tuple[Cell, ...]] = [
        (name, before["consecutive"], after["consecutive"], before["longest_run"],
         after["longest_run"])
        for name, task in tasks.items()
        for before, after in [task["repetition"].values()]
    ]  # fmt: skip
    columns = ("task", "consecutive", "consecutive_after", "longest_run", "longest_run_after")
    return ResultTable("table_3_repetition", "repetition before and after", columns, rows)


def _wins(tasks: dict[str, Any]) -> ResultTable:
    columns = (
        "ties", "wins", "win_repair", "win_regress", "losses", "loss_repair", "loss_regress",
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (name, *(task["wins_and_losses"][column] for column in columns))
        for name, task in tasks.items()
    ]
    return ResultTable("table_5_wins", "rescored drafts against argmax", ("task", *columns), rows)


def _entropies(tasks: dict[str, Any]) -> ResultTable:
    rows: list[tuple[Cell, ...]] = [
        (name, head, mean, task["entropies"]["h_max"])
        for name, task in tasks.items()
        for head, mean in enumerate(task["entropies"]["means"], 1)
    ]
    columns = ("task", "head", "mean_entropy", "h_max")
    return ResultTable("figure_3_entropies", "mean entropy of each head, nats", columns, rows)


def _acceptance(tasks: dict[str, Any]) -> ResultTable:
    rows: list[tuple[Cell, ...]] = [
        (name, line["name"], slot["slot"], slot["calls"], slot["accepted"],
         slot["accepted_if_reached"])
        for name, task in tasks.items()
        for line in task["strategies"]
        for slot in line["acceptance_by_slot"]
    ]  # fmt: skip
    columns = ("task", "strategy", "slot", "calls", "accepted", "accepted_if_reached")
    return ResultTable("acceptance_by_slot", "acceptance by slot", columns, rows)


def _loops(tasks: dict[str, Any]) -> ResultTable:
    rows: list[tuple[Cell, ...]] = [
        (name, line["name"], *group.values())
        for name, task in tasks.items()
        for line in task["strategies"]
        for group in line["by_loop_share"]
    ]
    columns = ("task", "strategy", "above", "up_to", "texts", "block_efficiency", "gain_over_bpd")
    return ResultTable("gains_by_loop_share", "gains by share of looping output", columns, rows)


def _rules(tasks: dict[str, Any]) -> ResultTable:
    columns = (
        "rule", "lossless", "texts", "block_efficiency", "relaxed_share", "regret_per_token",
        "nats_per_token", "same_texts", "quality", "tokens_per_second",
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (name, *(line[column] for column in columns))
        for name, task in tasks.items()
        for line in task.get("acceptance", ())
    ]
    caption = "acceptance rules against quality"
    return ResultTable("acceptance_rules", caption, ("task", *columns), rows)


def _costs_table(costs: Iterable[dict[str, Any]]) -> ResultTable:
    rows: list[tuple[Cell, ...]] = [
        (cost["strategy"], cost["mean_block_efficiency"], cost["draft_tokens_per_call"],
         cost["parameter_gb"], *cost["kv_gb"].values(), cost["tera_flops"])
        for cost in costs
    ]  # fmt: skip
    kv = tuple(f"kv_gb_{length}" for length in SEQUENCE_LENGTHS)
    columns = ("strategy", "block_efficiency", "draft_tokens_per_call", "parameter_gb", *kv)
    caption = "per decoded token, a 1.5 B target"
    return ResultTable("table_11_costs", caption, (*columns, "tera_flops"), rows)


def _latex_cell(cell: Cell) -> str:
    if cell is None:
        return "--"
    if isinstance(cell, bool):
        return r"$\bullet$" if cell else ""
    return f"{cell:.3f}" if isinstance(cell, float) else _escape(str(cell))


def _escape(text: str) -> str:
    for mark in "\\&%$#_{}":
        text = text.replace(mark, r"\textbackslash " if mark == "\\" else f"\\{mark}")
    return text
