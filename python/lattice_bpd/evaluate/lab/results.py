"""results.json of an evaluation, and its tables as files; docs/evaluate.md has the schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lattice_bpd._core import FormatError
from lattice_bpd.evaluate.costs.cost_model import PAPER_TARGET, SEQUENCE_LENGTHS
from lattice_bpd.evaluate.lab.result_tables import line_of, make_tables
from lattice_bpd.evaluate.statistics.heads import correlate

FORMAT, VERSION = "lattice-bpd results", 1
RESULTS_FILE = "results.json"


def finish_results(
    tasks: dict[str, dict[str, Any]], lms: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """The whole of results.json.

    Args:
        tasks: of `Lab.evaluate`, by name.
        lms: what is to be told about each LM, by name.
        more: further keys, such as model, seconds.
    """
    bpd = [line_of(task, "bpd")["block_efficiency"] for task in tasks.values()]
    return {
        "format": FORMAT,
        "version": VERSION,
        **more,
        "lms": lms,
        "tasks": tasks,
        "h_max_correlation": correlate([t["entropies"]["h_max"] for t in tasks.values()], bpd),
        "costs": _costs(list(tasks.values())),
    }


def read_results(directory: str | Path) -> dict[str, Any]:
    """The results.json of a run folder.

    Raises:
        FileNotFoundError: there is none.
        FormatError: it is none, or of another version.
    """
    path = Path(directory) / RESULTS_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such file; expected the output folder of lattice-bpd evaluate"
        )
    try:
        results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found = (results["format"], results["version"])
        if found != (FORMAT, VERSION):
            raise ValueError(f"format and version are {found}, not {(FORMAT, VERSION)}")
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
        temporary = directory / f".{name}"
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(directory / name)
        finally:
            temporary.unlink(missing_ok=True)
    return [directory / name for name in files]


def _costs(tasks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Table 11 with these block efficiencies, for the paper's 1.5 B target."""
    names = [line["name"] for line in tasks[0]["strategies"]] if tasks else []
    found = []
    for name in names:
        lines = [line_of(task, name) for task in tasks]
        mean = sum(line["block_efficiency"] for line in lines) / len(lines)
        drafted = sum(line["draft_tokens_per_call"] for line in lines) / len(lines)
        costs = [PAPER_TARGET.per_token(mean, n, drafted) for n in SEQUENCE_LENGTHS]
        found.append(
            {
                "strategy": name,
                "mean_block_efficiency": mean,
                "draft_tokens_per_call": drafted,
                "parameter_gb": costs[0].parameter_gb,
                "kv_gb": {str(n): c.kv_gb for n, c in zip(SEQUENCE_LENGTHS, costs, strict=True)},
                "tera_flops": costs[0].tera_flops,
            }
        )
    return found
