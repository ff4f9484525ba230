"""results.json of an evaluation, and its tables as files; docs/evaluate.md has the schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lattice_bpd._core import FormatError
from lattice_bpd.atomic_files import check_header, write_text
from lattice_bpd_kim2024.lab.paper_costs import cost_rows, relative_costs
from lattice_bpd_kim2024.lab.result_tables import line_of, make_tables
from lattice_bpd_kim2024.statistics.heads import correlate, fit_line

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
