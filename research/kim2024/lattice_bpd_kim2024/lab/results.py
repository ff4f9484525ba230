"""Results of a run folder, their tables, and the cost columns.

The costs are those of the paper's 1.5 B target, at the block efficiencies measured here.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lattice_bpd._core import FormatError
from lattice_bpd.atomic_files import check_header, write_text
from lattice_bpd_kim2024.costs import (
    PAPER_RESCORER,
    PAPER_TARGET,
    SEQUENCE_LENGTHS,
    TokenCost,
)
from lattice_bpd_kim2024.statistics import correlate, fit_line

Row = dict[str, Any]
_NEURAL = ("neural", "mixture")  # strategies that call a rescorer begin with one of these


def count_verified_tokens(line: Row) -> float:
    """Tokens of a call that are verified or predicted, as table 11 counts them.

    Args:
        line: of a strategy in results.json.

    Returns:
        h for each draft of a list, head 1 among them (9 and 16 x 9 in the paper), whether or not
        drafts share tokens; for trees and lookup the measured draft tokens and one for head 1.
    """
    options, heads = line["options"], len(line["accept_histogram"])
    if "max_nodes" in options or line["name"] == "prompt_lookup":
        return float(line["draft_tokens_per_call"]) + 1.0
    return float(heads * options.get("num_drafts", 1))


def cost_rows(tasks: Mapping[str, Row]) -> list[Row]:
    """Table 11: autoregressive decoding, then each strategy at its mean over the tasks.

    Args:
        tasks: of results.json; the strategies are those of the first.

    Returns:
        The rows `costs` of results.json; research/kim2024/evaluate.md has the keys.
    """
    rows = [_row("autoregressive", 1.0, 0.0, 0.0)]
    for first in next(iter(tasks.values()))["strategies"] if tasks else ():
        name = first["name"]
        lines = [_line(task, name) for task in tasks.values()]
        means = (
            sum(values) / len(lines)
            for values in (
                [line["block_efficiency"] for line in lines],
                [line["draft_tokens_per_call"] for line in lines],
                [count_verified_tokens(line) for line in lines],
            )
        )
        rows.append(_row(name, *means))
    return rows


def relative_costs(task: Row) -> list[Row]:
    """Figure 2: each strategy of a task relative to BPD, as fractions of its values.

    Returns:
        {strategy, label, block_efficiency: change, parameter_gb, kv_gb, tera_flops: change per
        decoded token at the longest context of table 11}, without BPD and the oracle.
    """
    lines: Sequence[Row] = task["strategies"]
    bpd = _line(task, "bpd")
    baseline, efficiency = _cost_of(bpd), bpd["block_efficiency"]
    rows = []
    for line in lines:
        if line["name"] not in ("bpd", "oracle"):
            cost = _cost_of(line)._asdict().items()
            changes = {key: value / getattr(baseline, key) - 1.0 for key, value in cost}
            gain = line["block_efficiency"] / efficiency - 1.0
            labels = {"strategy": line["name"], "label": line["label"]}
            rows.append({**labels, "block_efficiency": gain, **changes})
    return rows


def _cost_of(line: Row) -> TokenCost:
    return _cost(
        line["name"], line["block_efficiency"], count_verified_tokens(line), SEQUENCE_LENGTHS[-1]
    )


def _cost(name: str, efficiency: float, tokens: float, context: int) -> TokenCost:
    rescorer = PAPER_RESCORER if name.startswith(_NEURAL) else None
    return PAPER_TARGET.per_token(efficiency, context, tokens, rescorer)


def _row(name: str, efficiency: float, drafted: float, verified: float) -> Row:
    costs = {n: _cost(name, efficiency, verified, n) for n in SEQUENCE_LENGTHS}
    first = costs[SEQUENCE_LENGTHS[0]]
    return {
        "strategy": name,
        "mean_block_efficiency": efficiency,
        "draft_tokens_per_call": drafted,
        "verified_tokens_per_call": verified,
        "parameter_gb": first.parameter_gb,
        "kv_gb": {str(n): cost.kv_gb for n, cost in costs.items()},
        "tera_flops": first.tera_flops,
    }


def _line(task: Row, name: str) -> Row:
    line: Row = next(line for line in task["strategies"] if line["name"] == name)
    return line


Cell = str | float | int | None
Tasks = dict[str, dict[str, Any]]
Rows = Iterator[tuple[Cell, ...]]


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
        """Comma-separated values with a header."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
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
    """The tables that these results can fill; columns are space-separated here."""
    tasks: Tasks = results["tasks"]
    kv = " ".join(f"kv_gb_{length}" for length in SEQUENCE_LENGTHS)
    wins = "ties wins win_repair win_regress losses loss_repair loss_regress"
    rules = (
        "rule lossless texts block_efficiency relaxed_share regret_per_token nats_per_token "
        "same_texts quality tokens_per_second"
    )
    tables: list[tuple[str, str, str, Iterable[tuple[Cell, ...]]]] = [
        ("table_1_tasks", "performance and block efficiency of BPD",
         "task metric performance bpd low high loop_share", _performance(tasks)),
        ("table_3_repetition", "repetition of drafts", "task strategy consecutive longest_run",
         ((name, strategy, row["consecutive"], row["longest_run"]) for name, task in tasks.items()
          for strategy, row in task["repetition"].items())),
        ("table_4_strategies", "block efficiency by strategy",
         "task strategy label block_efficiency low high gain_over_bpd gain_low gain_high p_value "
         "draft_tokens_per_call", _strategies(tasks)),
        ("table_5_wins", "rescored drafts against argmax", f"task strategy {wins}",
         ((name, strategy, *(row[column] for column in wins.split()))
          for name, task in tasks.items() for strategy, row in task["wins_and_losses"].items())),
        ("table_8_weights", "weights tried on held-out texts",
         "task strategy scorer alpha temperature block_efficiency best", _weights(tasks)),
        _curve(tasks, "by_heads", "table_10_heads", "BPD by number of heads"),
        ("table_11_costs", "per decoded token, a 1.5 B target",
         "strategy block_efficiency draft_tokens_per_call verified_tokens_per_call parameter_gb "
         f"{kv} tera_flops",
         ((cost["strategy"], cost["mean_block_efficiency"], cost["draft_tokens_per_call"],
           cost["verified_tokens_per_call"], cost["parameter_gb"], *cost["kv_gb"].values(),
           cost["tera_flops"])
          for cost in results["costs"])),
        ("figure_2_relative", "changes from BPD per decoded token of a 1.5 B target",
         "task strategy block_efficiency parameter_gb kv_gb tera_flops",
         ((name, row["strategy"], row["block_efficiency"], row["parameter_gb"], row["kv_gb"],
           row["tera_flops"])
          for name, task in tasks.items() for row in task["relative_to_bpd"])),
        ("figure_3_entropies", "mean entropy of each head, nats", "task head mean_entropy h_max",
         ((name, head, mean, task["entropies"]["h_max"]) for name, task in tasks.items()
          for head, mean in enumerate(task["entropies"]["means"], 1))),
        ("figure_3b_h_max", "block efficiency of BPD by h_max", "task h_max block_efficiency",
         ((name, task["entropies"]["h_max"], line_of(task, "bpd")["block_efficiency"])
          for name, task in tasks.items())),
        _curve(tasks, "oracle_by_top_k", "figure_6_oracle", "oracle by k and heads", "top_k"),
        _curve(tasks, "by_num_drafts", "figure_7_num_drafts", "lists by p", "num_drafts"),
        _curve(tasks, "by_max_nodes", "trees_by_max_nodes", "trees by N", "max_nodes"),
        _curve(tasks, "by_lm", "table_7_9_lms", "by LM: orders, domains, rescorers", "lm scorer"),
        ("acceptance_by_slot", "acceptance by slot",
         "task strategy slot calls accepted accepted_if_reached",
         _nested(tasks, "acceptance_by_slot")),
        ("gains_by_loop_share", "gains by share of looping output",
         "task strategy above up_to texts block_efficiency gain_over_bpd",
         _nested(tasks, "by_loop_share")),
        ("acceptance_rules", "acceptance rules against quality", f"task {rules}",
         ((name, *(line[column] for column in rules.split())) for name, task in tasks.items()
          for line in task.get("acceptance", ()))),
    ]  # fmt: skip
    made = [ResultTable(n, caption, tuple(c.split()), list(rows)) for n, caption, c, rows in tables]
    return [table for table in made if table.rows]


def line_of(task: dict[str, Any], name: str) -> dict[str, Any]:
    """The line of a strategy in results.json."""
    line: dict[str, Any] = next(line for line in task["strategies"] if line["name"] == name)
    return line


def _performance(tasks: Tasks) -> Rows:
    for name, task in tasks.items():
        metric = task.get("performance") or {"metric": None, "value": None}
        interval = line_of(task, "bpd")["interval"].values()
        yield name, metric["metric"], metric["value"], *interval, task["loop_share"]


def _strategies(tasks: Tasks) -> Rows:
    for name, task in tasks.items():
        for line in task["strategies"]:
            low, high, over_bpd = (
                line["interval"]["low"],
                line["interval"]["high"],
                line["over_bpd"],
            )
            gain = over_bpd["gain"]
            yield (
                name, line["name"], line["label"], line["block_efficiency"], low, high,
                gain["value"], gain["low"], gain["high"], over_bpd["p_value"],
                line["draft_tokens_per_call"],
            )  # fmt: skip


def _weights(tasks: Tasks) -> Rows:
    for name, task in tasks.items():
        for sweep in task["block_efficiency_by_weights"].values():
            best = max(point["block_efficiency"] for point in sweep)
            for point in sweep:
                if "alpha" in point:
                    value = point["block_efficiency"]
                    options = point["alpha"], point.get("temperature")
                    names = name, point["strategy"], point.get("scorer")
                    yield *names, *options, value, value == best


def _curve(
    tasks: Tasks, key: str, name: str, caption: str, option: str = ""
) -> tuple[str, str, str, Iterable[tuple[Cell, ...]]]:
    """A curve of results.json by the number of heads and one more option."""
    columns = [
        "strategy",
        "num_heads",
        *option.split(),
        "block_efficiency",
        "draft_tokens_per_call",
    ]
    rows = (
        (task_name, *(line.get(column) for column in columns))
        for task_name, task in tasks.items()
        for line in task[key]
    )
    return name, caption, " ".join(["task", *columns]), rows


def _nested(tasks: Tasks, key: str) -> Rows:
    for name, task in tasks.items():
        for line in task["strategies"]:
            for row in line[key]:
                yield name, line["name"], *row.values()


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


FORMAT, VERSION = "lattice-bpd results", 2  # 2: repetition and wins by strategy
RESULTS_FILE = "results.json"


def finish_results(
    tasks: dict[str, dict[str, Any]], lms: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """The whole of results.json.

    Args:
        tasks: of `Lab.evaluate`, by name.
        lms: file, order and sizes of each LM, by name.
        more: further keys, such as model, seconds.
    """
    bpd = [line_of(task, "bpd")["block_efficiency"] for task in tasks.values()]
    h_max = [task["entropies"]["h_max"] for task in tasks.values()]
    for task in tasks.values():
        task["relative_to_bpd"] = relative_costs(task)
    return {
        "format": FORMAT, "version": VERSION, **more, "lms": lms, "tasks": tasks,
        "h_max_correlation": correlate(h_max, bpd), "h_max_line": fit_line(h_max, bpd),
        "costs": cost_rows(tasks),
    }  # fmt: skip


def read_results(directory: str | Path) -> dict[str, Any]:
    """The results.json of a run folder.

    Raises:
        FileNotFoundError: there is none.
        FormatError: another format or version.
    """
    path = Path(directory) / RESULTS_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such file; expected the output folder of lattice-bpd evaluate"
        )
    try:
        results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        check_header(results, FORMAT, VERSION)
        if not all(isinstance(results[key], dict) for key in ("tasks", "lms")):
            raise TypeError("tasks and lms are not objects")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FormatError(
            f"{path}: not the results of an evaluation ({error!r}); evaluate again"
        ) from error
    return results


def write_results(directory: Path, results: dict[str, Any]) -> list[Path]:
    """Write results.json, and each table as .csv and .tex.

    Returns:
        The files, results.json first.

    Raises:
        OSError: the folder cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files = {RESULTS_FILE: json.dumps(results, indent=2) + "\n"}
    for table in make_tables(results):
        files[f"{table.name}.csv"] = table.to_csv()
        files[f"{table.name}.tex"] = table.to_latex()
    for name, text in files.items():
        write_text(directory / name, text)
    return [directory / name for name in files]
