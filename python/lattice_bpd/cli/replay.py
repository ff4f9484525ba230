"""`lattice-bpd replay`: what decoding with any strategy would do on a record, without the model."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd.cli.evaluate_options import count_text, load_lms, parse_list

if TYPE_CHECKING:
    from rich.console import Console

    from lattice_bpd.evaluate.lab.result_tables import ResultTable
    from lattice_bpd.evaluate.record.read import Record
    from lattice_bpd.evaluate.replay.replay import Recording, Replayed
    from lattice_bpd.evaluate.replay.sweep import Point

_EXAMPLE = """examples:
  lattice-bpd replay run --strategies bpd,oracle --top-k 1,2,4,8,16
  lattice-bpd replay run --lm 2gram=two.lm --lm 4gram=four.lm --alpha 0.1,0.5,1 --csv sweep.csv

Options that take lists are swept: every combination that makes a difference is replayed.
"""
_INTS = ("top_k", "num_drafts", "max_nodes")
_FLOATS = ("alpha", "temperature")


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
    parser.add_argument(
        "--strategies", help="names between commas (default: all that can run); see the docs"
    )
    for name in _INTS + _FLOATS:
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="N,N,..", help="values to try")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N texts of each task")
    parser.add_argument(
        "--count-text", type=Path, metavar="FILE", help="text to count for count_trie"
    )
    parser.add_argument("--tokenizer", type=Path, help="of --count-text (default: the record's)")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="default: all cores")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the table there, too")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Replay and print.

    Raises:
        ValueError: options or files that do not fit together.
        OSError: a file that cannot be read or written.
        ImportError: an extra is missing.
    """
    from lattice_bpd.cli.files import load_tokenizer
    from lattice_bpd.cli.progress import ConsoleWatcher, make_console
    from lattice_bpd.evaluate.record.read import find_records, read_record
    from lattice_bpd.evaluate.replay.positions import Rescorers
    from lattice_bpd.evaluate.replay.sweep import sweep

    records = {task: read_record(path) for task, path in find_records(args.record).items()}
    first = next(iter(records.values())).manifest
    lms = load_lms(args.lm)
    for name, lm in lms.items():
        if lm.vocab_size != first.vocab_size:
            raise ValueError(
                f"--lm {name} has a vocabulary of {lm.vocab_size}, the record one of "
                f"{first.vocab_size}; train the LM on token ids of the record's tokenizer"
            )
    tokenizer = None
    if args.count_text is not None and (args.tokenizer or first.tokenizer):
        tokenizer = load_tokenizer(args.tokenizer or Path(str(first.tokenizer)))
    trie = count_text(args.count_text, tokenizer, first.vocab_size)
    top_k = min(record.manifest.top_k for record in records.values())
    points = _points(args, tuple(lms), has_trie=trie is not None, top_k=top_k)
    recordings = _recordings(records, args.limit)
    console = make_console()
    watcher = ConsoleWatcher(console, {"replay": "replaying"})
    watcher.begin("replay", len(points) * len(recordings))
    start = time.perf_counter()
    found = sweep(
        list(recordings.values()), points, lms, Rescorers(trie=trie),
        workers=args.workers, on_point=watcher.advance,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    watcher.end()
    table = _table(dict(zip(recordings, found, strict=True)), points)
    _print(console, table)
    steps = sum(len(replayed.places) for row in found for replayed in row)
    console.print(f"{steps:,} steps replayed, {steps / max(seconds, 1e-9):,.0f} steps/s")
    if args.csv is not None:
        temporary = args.csv.with_name(f".{args.csv.name}")
        temporary.write_text(table.to_csv(), encoding="utf-8")
        temporary.replace(args.csv)


def _points(
    args: argparse.Namespace, lms: tuple[str, ...], *, has_trie: bool, top_k: int
) -> list[Point]:
    from lattice_bpd.evaluate.replay.settings import DraftOptions
    from lattice_bpd.evaluate.replay.strategies import STRATEGIES, find_strategies
    from lattice_bpd.evaluate.replay.sweep import make_grid

    if args.strategies is None:
        strategies = [
            found for found in STRATEGIES.values()
            if (lms or not found.uses_lm) and (has_trie or not found.uses_trie)
        ]  # fmt: skip
    else:
        strategies = find_strategies(args.strategies.split(","))
    for strategy in strategies:
        if strategy.uses_lm and not lms:
            raise ValueError(f"strategy {strategy.name} needs an n-gram LM; give --lm FILE")
    values: dict[str, Any] = {"top_k": [min(DraftOptions().top_k, top_k)]}
    for names, kind in ((_INTS, int), (_FLOATS, float)):
        for name in names:
            text = getattr(args, name)
            if text is not None:
                values[name] = parse_list(text, f"--{name.replace('_', '-')}", kind)
    return make_grid(strategies, values, lms)


def _recordings(records: dict[str, Record], limit: int | None) -> dict[str, Recording]:
    """By task, and within a task by kind of text."""
    from lattice_bpd.evaluate.replay.replay import Recording

    if limit is not None and limit < 1:
        raise ValueError(f"--limit is {limit}; expected 1 or more")
    found = {}
    for task, record in records.items():
        texts = record.texts[:limit]
        kinds = dict.fromkeys(text.task for text in texts)
        for kind in kinds if len(kinds) > 1 else [task]:
            mine = texts if kind == task else [text for text in texts if text.task == kind]
            found[kind] = Recording(mine)
    return found


def _table(found: dict[str, list[Replayed]], points: list[Point]) -> ResultTable:
    from lattice_bpd.evaluate.lab.result_tables import ResultTable
    from lattice_bpd.evaluate.statistics import bootstrap_block_efficiency

    rows: list[tuple[Any, ...]] = []
    for task, row in found.items():
        for point, replayed in zip(points, row, strict=True):
            chosen = point.to_json()
            interval = bootstrap_block_efficiency(replayed.tokens, replayed.calls)
            rows.append(
                (
                    task, point.strategy.name, point.lm or None,
                    *(chosen.get(name) for name in _INTS + _FLOATS),
                    replayed.block_efficiency, interval.low, interval.high,
                    int(replayed.calls.sum()), replayed.nodes_per_call,
                )
            )  # fmt: skip
    columns = (
        "task", "strategy", "lm", *_INTS, *_FLOATS, "block_efficiency", "low", "high",
        "target_calls", "draft_tokens_per_call",
    )  # fmt: skip
    return ResultTable("replay", "block efficiency of replays", columns, rows)


def _print(console: Console, table: ResultTable) -> None:
    """The table without columns that nothing has."""
    from rich.table import Table

    shown = [
        number for number in range(len(table.columns))
        if any(row[number] is not None for row in table.rows)
    ]  # fmt: skip
    rich_table = Table()
    for number in shown:
        text = table.columns[number] in ("task", "strategy", "lm")
        rich_table.add_column(table.columns[number], justify="left" if text else "right")
    for row in table.rows:
        rich_table.add_row(*(_show(row[number]) for number in shown))
    console.print(rich_table)


def _show(cell: Any) -> str:
    if cell is None:
        return ""
    return f"{cell:.3f}".rstrip("0").rstrip(".") if isinstance(cell, float) else str(cell)
