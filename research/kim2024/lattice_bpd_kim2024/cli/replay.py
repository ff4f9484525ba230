"""`lattice-bpd replay`: simulate strategies on a record, without the model."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd_kim2024.cli.evaluate_options import (
    TEXT_LIMIT,
    add_rescorer_option,
    check_numbers,
    check_vocabularies,
    load_lms,
    load_rescorers,
    parse_list,
)

if TYPE_CHECKING:
    from rich.console import Console

    from lattice_bpd_kim2024.lab.results import ResultTable
    from lattice_bpd_kim2024.record.files import Record
    from lattice_bpd_kim2024.record.texts import RecordedText
    from lattice_bpd_kim2024.replay.replay import Recording, Replayed
    from lattice_bpd_kim2024.replay.scorers import Scorers
    from lattice_bpd_kim2024.replay.sweep import Point

_EXAMPLE = """examples:
  lattice-bpd replay run --strategies bpd,oracle --top-k 1,2,4,8,16
  lattice-bpd replay run --lm 2gram=two.lm --lm 4gram=four.lm --alpha 0.1,0.5,1 --csv sweep.csv
  lattice-bpd replay run --rescorer 32M=DIR --strategies bpd,neural --alpha 0.5,1,2

Options that take lists are swept: every distinct combination is replayed.
"""
_INTS = ("top_k", "num_drafts", "max_nodes")
_FLOATS = ("alpha", "temperature")
_WIDEST = 400  # columns
_NAMES = ("task", "strategy", "lm", "scorer")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `replay`."""
    parser = commands.add_parser(
        "replay",
        help="block efficiency of strategies on a record, without the model",
        description="Simulate drafting strategies on a record, call for call as live decoding.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("record", type=Path, metavar="RUN", help="of record or evaluate")
    parser.add_argument(
        "--lm", action="append", default=[], metavar="[NAME=]FILE", help="n-gram LM; repeatable"
    )
    add_rescorer_option(parser)
    parser.add_argument(
        "--strategies", help="names between commas (default: all that can run); see the docs"
    )
    for name in _INTS + _FLOATS:
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="N,N,..", help="values to try")
    parser.add_argument("--limit", type=int, metavar="N", help=TEXT_LIMIT)
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="default: all cores")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the table there, too")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Replay and print."""
    from lattice_bpd.extensions import require

    require("torch", "lattice-bpd-kim2024")
    from lattice_bpd.atomic_files import write_text
    from lattice_bpd.cli.files import check_output
    from lattice_bpd.cli.progress import ConsoleWatcher, make_console
    from lattice_bpd_kim2024.record.files import find_records, read_record
    from lattice_bpd_kim2024.replay.scorers import make_scorers
    from lattice_bpd_kim2024.replay.sweep import sweep

    if args.csv is not None:
        check_output(args.csv, takes_devices=True)
    records = {task: read_record(path) for task, path in find_records(args.record).items()}
    first = next(iter(records.values())).manifest
    lms = load_lms(args.lm)
    check_vocabularies(lms, first.vocab_size)
    rescorers = load_rescorers(args.rescorer)
    check_vocabularies(rescorers, first.vocab_size, "--rescorer")
    scorers = make_scorers(rescorers, lms)
    top_k = min(record.manifest.top_k for record in records.values())
    points = _points(args, tuple(lms), scorers, top_k)
    recordings = _recordings(args, records)
    console = make_console()
    watcher = ConsoleWatcher(
        console, {"read": "reading texts with rescorers", "replay": "replaying"}
    )
    used = {point.scorer for point in points} - {""}
    if used:
        watcher.begin("read")
        by_name = {n: s for group in scorers.values() for n, s in group.items() if n in used}
        recordings = {
            name: recording.read_with(by_name, watcher.advance)
            for name, recording in recordings.items()
        }
        watcher.end()
    watcher.begin("replay", len(points) * len(recordings))
    start = time.perf_counter()
    results = sweep(
        list(recordings.values()), points, lms, scorers=scorers,
        workers=args.workers, on_point=watcher.advance,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    watcher.end()
    table = _table(dict(zip(recordings, results, strict=True)), points)
    _print(console, table)
    steps = sum(len(replayed.places) for row in results for replayed in row)
    console.print(f"{steps:,} steps replayed, {steps / max(seconds, 1e-9):,.0f} steps/s")
    if args.csv is not None:
        write_text(args.csv, table.to_csv())


def _points(
    args: argparse.Namespace, lms: tuple[str, ...], scorers: Scorers, top_k: int
) -> list[Point]:
    from lattice_bpd.draft.config import DraftConfig
    from lattice_bpd_kim2024.replay.strategies import STRATEGIES, find_strategies
    from lattice_bpd_kim2024.replay.sweep import make_grid

    if args.strategies is None:
        strategies = [
            strategy for strategy in STRATEGIES.values()
            if (lms or not strategy.uses_lm)
            and (scorers.get(strategy.name) or not strategy.uses_scorer)
        ]  # fmt: skip
    else:
        strategies = find_strategies(args.strategies.split(","))
    for strategy in strategies:
        if strategy.uses_lm and not lms:
            raise ValueError(f"strategy {strategy.name} needs an n-gram LM; give --lm FILE")
        if strategy.uses_scorer and not scorers.get(strategy.name):
            raise ValueError(f"strategy {strategy.name} needs a rescorer; give --rescorer DIR")
    values: dict[str, Any] = {"top_k": [min(DraftConfig().top_k, top_k)]}
    for name in _INTS + _FLOATS:
        if (text := getattr(args, name)) is not None:
            kind = int if name in _INTS else float
            values[name] = parse_list(text, f"--{name.replace('_', '-')}", kind)
    return make_grid(strategies, values, lms, scorers)


def _recordings(args: argparse.Namespace, records: dict[str, Record]) -> dict[str, Recording]:
    """By task, or "task/category"; texts without a category beside others have a line of theirs."""
    from lattice_bpd_kim2024.replay.replay import Recording

    check_numbers(args, 1, "limit")
    groups: dict[str, list[RecordedText]] = {}
    for task, record in records.items():
        texts, prefix = record.texts[: args.limit], f"{record.manifest.task}/"
        has_categories = any(text.task.startswith(prefix) for text in texts)
        other = f"{task} (no category)" if has_categories else task
        for text in texts:
            category = text.task.removeprefix(prefix)
            name = f"{task}/{category}" if text.task.startswith(prefix) else other
            groups.setdefault(name, []).append(text)
    return {name: Recording(texts) for name, texts in groups.items()}


def _table(results: dict[str, list[Replayed]], points: list[Point]) -> ResultTable:
    from lattice_bpd.build.bootstrap import bootstrap_ratio
    from lattice_bpd_kim2024.lab.results import ResultTable

    rows: list[tuple[Any, ...]] = []
    for task, row in results.items():
        for point, replayed in zip(points, row, strict=True):
            options = point.to_json()
            interval = bootstrap_ratio(replayed.tokens, replayed.calls)
            rows.append(
                (
                    task, point.strategy.name, point.lm or None, point.scorer or None,
                    *(options.get(name) for name in _INTS + _FLOATS),
                    replayed.block_efficiency, interval.low, interval.high,
                    int(replayed.calls.sum()), replayed.nodes_per_call,
                )
            )  # fmt: skip
    columns = (
        "task", "strategy", "lm", "scorer", *_INTS, *_FLOATS, "block_efficiency", "low", "high",
        "target_calls", "draft_tokens_per_call",
    )  # fmt: skip
    return ResultTable("replay", "block efficiency of replays", columns, rows)


def _print(console: Console, table: ResultTable) -> None:
    """The table without empty columns; as wide as it is where there is no terminal."""
    from rich.table import Table

    rows = zip(*table.rows, strict=True)
    columns = [
        (name, cells) for name, cells in zip(table.columns, rows, strict=True)
        if any(cell is not None for cell in cells)
    ]  # fmt: skip
    rich_table = Table()
    for name, _ in columns:
        rich_table.add_column(name, justify="left" if name in _NAMES else "right")
    for row in zip(*(map(_show, cells) for _, cells in columns), strict=True):
        rich_table.add_row(*row)
    if not console.is_terminal:
        console.width = _WIDEST
    console.print(rich_table)


def _show(cell: Any) -> str:
    if cell is None:
        return ""
    return f"{cell:.3f}".rstrip("0").rstrip(".") if isinstance(cell, float) else str(cell)
