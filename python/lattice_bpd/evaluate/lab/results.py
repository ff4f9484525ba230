"""results.json of an evaluation, and its tables as files; docs/evaluate.md has the schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lattice_bpd._core import FormatError
from lattice_bpd.atomic_files import check_header, write_text
from lattice_bpd.evaluate.costs.cost_model import (
    PAPER_RESCORER,
    PAPER_TARGET,
    SEQUENCE_LENGTHS,
    TokenCost,
)
from lattice_bpd.evaluate.lab.result_tables import line_of, make_tables
from lattice_bpd.evaluate.statistics.heads import correlate

FORMAT, VERSION = "lattice-bpd results", 2  # 2: repetition and wins by strategy
RESULTS_FILE = "results.json"
_RESCORED = ("neural", "mixture")  # strategies whose calls read a rescorer too
_FIGURE_2_LENGTH = 1024  # tokens of context


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
    names = [line["name"] for task in list(tasks.values())[:1] for line in task["strategies"]]
    costs = [_cost(name, [line_of(task, name) for task in tasks.values()]) for name in names]
    for task in tasks.values():
        task["relative_to_bpd"] = _relative_to_bpd(task)
    return {
        "format": FORMAT, "version": VERSION, **more, "lms": lms, "tasks": tasks,
        "h_max_correlation": correlate(h_max, bpd), "costs": costs,
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


def _cost(strategy: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Table 11 for the paper's 1.5 B target, at a strategy's mean block efficiency over tasks."""
    efficiency = sum(line["block_efficiency"] for line in lines) / len(lines)
    drafted = sum(line["draft_tokens_per_call"] for line in lines) / len(lines)
    costs = {n: _per_token(strategy, efficiency, drafted, n) for n in SEQUENCE_LENGTHS}
    first = costs[SEQUENCE_LENGTHS[0]]
    return {
        "strategy": strategy,
        "mean_block_efficiency": efficiency,
        "draft_tokens_per_call": drafted,
        "parameter_gb": first.parameter_gb,
        "kv_gb": {str(n): cost.kv_gb for n, cost in costs.items()},
        "tera_flops": first.tera_flops,
    }


def _per_token(strategy: str, efficiency: float, drafted: float, length: int) -> TokenCost:
    """The cost of a token with the paper's target, and its 61 M rescorer where one is used."""
    rescorer = PAPER_RESCORER if strategy in _RESCORED else None
    return PAPER_TARGET.per_token(efficiency, length, drafted, rescorer)


def _relative_to_bpd(task: dict[str, Any]) -> list[dict[str, Any]]:
    """Figure 2: block efficiency, KV cache I/O and FLOPS per token as changes from BPD's."""

    def cost(line: dict[str, Any]) -> TokenCost:
        numbers = line["block_efficiency"], line["draft_tokens_per_call"]
        return _per_token(line["name"], *numbers, _FIGURE_2_LENGTH)

    base = cost(line_of(task, "bpd"))
    return [
        {
            "strategy": line["name"],
            "block_efficiency": line["over_bpd"]["gain"]["value"],
            "parameter_io": cost(line).parameter_gb / base.parameter_gb - 1.0,
            "kv_io": cost(line).kv_gb / base.kv_gb - 1.0,
            "flops": cost(line).tera_flops / base.tera_flops - 1.0,
        }
        for line in task["strategies"]
        if line["name"] not in ("bpd", "oracle")
    ]
