"""`lattice-bpd report`: write a run folder as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd_kim2024.cli.evaluate_options import check_numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from lattice_bpd import NGramLM
    from lattice_bpd_kim2024.record.files import Record

_EXAMPLE = """examples:
  lattice-bpd report run                        # writes run/report.html
  lattice-bpd report run --steps 50 --lm four.lm --tokenizer tokenizer.json -o page.html

The page needs no network: tables, charts and lattices are in it. Add #step=3 to its address to open
the lattice of step 3.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `report`."""
    parser = commands.add_parser(
        "report",
        help="an evaluation as one HTML page",
        description="Tables, charts and lattices of an evaluation as one self-contained page.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="of lattice-bpd evaluate")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="default: RUN/report.html")
    parser.add_argument(
        "--steps", type=int, metavar="N", help="lattices to show (default 200), 0 for none"
    )
    parser.add_argument("--lm", type=Path, metavar="FILE", help="default: the run's first LM")
    parser.add_argument("--rescorer", type=Path, metavar="DIR", help="default: the run's first one")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="default: the record's")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Read the run, write the page."""
    from lattice_bpd.extensions import require

    require("torch", "lattice-bpd-kim2024")
    from lattice_bpd import FormatError
    from lattice_bpd.cli.progress import ConsoleWatcher, make_console
    from lattice_bpd_kim2024.lab.results import RESULTS_FILE, read_results
    from lattice_bpd_kim2024.report import REPORT_FILE, render_report, write_report

    check_numbers(args, 0, "steps")
    results = read_results(args.run_folder)
    watcher = ConsoleWatcher(make_console(), {})
    notes: list[str] = []
    watcher.begin("rendering lattices")
    steps = _steps(args, results, notes) if args.steps != 0 else None
    watcher.end()
    try:
        page = render_report(results, steps, " ".join(notes))
    except (KeyError, TypeError, IndexError) as error:
        raise FormatError(
            f"{args.run_folder / RESULTS_FILE}: {error} is missing or has another type; expected "
            "results of lattice-bpd evaluate; evaluate again"
        ) from error
    path = args.out or args.run_folder / REPORT_FILE
    write_report(path, page)
    for note in notes:
        watcher.console.print(f"note: {note}", markup=False)
    watcher.console.print(f"{path}: {path.stat().st_size / 1e6:.1f} MB", markup=False)


def _steps(args: argparse.Namespace, results: dict[str, Any], notes: list[str]) -> Any:
    from lattice_bpd import FormatError
    from lattice_bpd_kim2024.record.files import find_records, read_record
    from lattice_bpd_kim2024.report import collect_steps
    from lattice_bpd_kim2024.report.page import MOST_STEPS

    try:
        paths = find_records(args.run_folder)
    except FileNotFoundError as error:
        notes.append(f"No lattices: {error}.")
        return None
    records = {task: read_record(path) for task, path in paths.items()}
    lm = _lm(args, results, notes)
    scorer = _scorer(args, results, notes)
    show = _show_token(args, next(iter(records.values())), notes)
    most = MOST_STEPS if args.steps is None else args.steps
    try:
        return collect_steps(records, results["tasks"], lm, show, scorer=scorer, most=most)
    except (KeyError, TypeError) as error:
        raise FormatError(
            f"{args.run_folder}: {error} is missing or has another type; expected a folder of "
            "lattice-bpd evaluate; evaluate again"
        ) from error


def _lm(args: argparse.Namespace, results: dict[str, Any], notes: list[str]) -> NGramLM | None:
    """The LM of --lm, or the run's first; None with a note if its file is missing."""
    from lattice_bpd import NGramLM

    if args.lm is not None:
        return NGramLM.load(args.lm)
    file = next((lm.get("file") for lm in results["lms"].values()), None)
    if file is None:
        return None
    if not Path(file).is_file():
        notes.append(f"Lattices without the n-gram LM: {file} is not there; give it by --lm FILE.")
        return None
    return NGramLM.load(file)


def _scorer(args: argparse.Namespace, results: dict[str, Any], notes: list[str]) -> Any:
    """The rescorer of --rescorer, or the run's first; None with a note if its folder is missing."""
    from lattice_bpd_kim2024.cli.evaluate_options import load_rescorers

    file = args.rescorer
    if file is None:
        file = next((one.get("file") for one in results.get("scorers", {}).values()), None)
        if file is not None and not Path(file).is_dir():
            notes.append(f"Lattices without neural drafts: {file} is not there; give --rescorer.")
            file = None
    return None if file is None else next(iter(load_rescorers([str(file)]).values()))


def _show_token(args: argparse.Namespace, record: Record, notes: list[str]) -> Callable[[int], str]:
    """Text of a token id; the id itself without a tokenizer."""
    from lattice_bpd_kim2024.cli.evaluate_options import load_tokenizer

    file = args.tokenizer or record.manifest.tokenizer
    try:
        if file is None:
            raise ValueError("the record names no tokenizer")
        tokenizer = load_tokenizer(Path(file))
    except (ValueError, OSError) as error:
        if args.tokenizer is not None:
            raise
        notes.append(f"Tokens are shown as ids ({error}); give a tokenizer.json by --tokenizer.")
        return str
    return lambda token: str(tokenizer.decode([token], skip_special_tokens=False)) or str(token)
