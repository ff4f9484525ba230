"""`lattice-bpd evaluate`: strategies x tasks, with the paper's tables."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd.cli.options import add_heads_option
from lattice_bpd_kim2024.cli.evaluate_options import (
    add_recording_options,
    add_rescorer_option,
    add_stop_tokens,
    check_numbers,
    check_vocabularies,
    find_folders,
    find_tokenizer,
    load_folders,
    load_lms,
    load_rescorers,
    load_tokenizer,
    make_record_options,
    name_files,
    parse_list,
    read_prompts,
)

if TYPE_CHECKING:
    from lattice_bpd.cli.progress import ConsoleWatcher
    from lattice_bpd_kim2024.demo.quick import Source
    from lattice_bpd_kim2024.lab.lab import LabOptions

_EXAMPLE = """examples:
  lattice-bpd evaluate --quick --out run
  lattice-bpd evaluate --model MODEL --lm c4=c4.lm --lm news=news.lm \\
      --task squad --data dev.json --task xsum --data xsum.jsonl --out run

Block efficiency is decoded tokens / calls of the target; the exact token of each call counts.
research/kim2024/evaluate.md explains the tasks, the tables and results.json.
"""
_PROMPTS = 20  # of each task of --quick
_TITLES = {"lms": "training LMs of other orders and domains"}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `evaluate`."""
    parser = commands.add_parser(
        "evaluate",
        help="strategies x tasks with the paper's tables",
        description="Record tasks, replay every drafting strategy, check losslessness live, and "
        "write results.json, CSV and LaTeX tables.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the run folder")
    parser.add_argument(
        "--quick", action="store_true",
        help="no data needed: the demo model (or that of --model) and tasks from Python's library",
    )  # fmt: skip
    parser.add_argument(
        "--model", type=Path, metavar="DIR",
        help="a blockwise model, or an encoder-decoder with its SpecDrafter or BlockwiseHeads",
    )  # fmt: skip
    add_heads_option(parser)
    parser.add_argument(
        "--lm", action="append", default=[], metavar="[NAME=]FILE",
        help="n-gram LM, the first is that of the main table; repeatable",
    )  # fmt: skip
    add_rescorer_option(parser, " (--quick: default the demo model's)")
    parser.add_argument(
        "--domain-lm", action="append", default=[], metavar="TASK=FILE",
        help="n-gram LM of the domain of one task, for that task only; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--domain-rescorer", action="append", default=[], metavar="TASK=DIR",
        help="rescorer fine-tuned on the domain of one task, for that task only; repeatable",
    )  # fmt: skip
    parser.add_argument("--task", action="append", default=[], help="repeatable, with --data")
    parser.add_argument("--data", action="append", default=[], type=Path, metavar="FILE")
    parser.add_argument("--strategies", metavar="NAME,..", help="default: all that can run")
    parser.add_argument(
        "--alphas", metavar="N,..", help="weights of LMs and rescorers to tune over"
    )
    parser.add_argument("--temperatures", metavar="N,..", help="of trees, to tune over")
    parser.add_argument("--num-drafts", type=int, metavar="P", help="p (default 16)")
    parser.add_argument("--max-nodes", type=int, metavar="N", help="N of trees (default 36)")
    parser.add_argument(
        "--held-out", type=int, metavar="N", help="texts to tune on (default 100, at most half)"
    )
    parser.add_argument(
        "--live", type=int, default=2, metavar="N", help="prompts decoded live (default 2)"
    )
    parser.add_argument(
        "--speed", type=int, metavar="N",
        help="texts of each task whose live decoding is timed (default 0; 2 with --quick)",
    )  # fmt: skip
    parser.add_argument(
        "--accept", action="append", default=[], metavar="RULE",
        help="acceptance rule to compare by live decoding, such as specdec++:3,1.0; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--accept-texts", type=int, default=16, metavar="N",
        help="most texts of each task that rules are compared on (default 16)",
    )  # fmt: skip
    add_recording_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Evaluate, write and print."""
    from lattice_bpd.cli.progress import ConsoleWatcher, make_console, quiet_transformers
    from lattice_bpd.extensions import require

    require("pyarrow", "lattice-bpd-kim2024")
    require("torch", "lattice-bpd-kim2024")
    _check(args)
    quiet_transformers()
    from lattice_bpd_kim2024.lab.results import write_results
    from lattice_bpd_kim2024.lab.run_folder import evaluate_source

    start = time.perf_counter()
    watcher = ConsoleWatcher(make_console(), _TITLES)
    source = _quick_source(args, watcher) if args.quick else _user_source(args)
    results = evaluate_source(
        args.out, source, _lab_options(args, source), watcher, live_texts=args.live
    )  # fmt: skip
    results["seconds"] = {"total": time.perf_counter() - start}
    files = write_results(args.out, results)
    _print(watcher, results)
    watcher.console.print(
        f"{results['seconds']['total']:.0f} s in all; {files[0]} and {len(files) - 1} table files"
    )
    failed = [
        f"{name}: {check['strategy']}"
        for name, task in results["tasks"].items()
        for check in task.get("live", ())
        if not check["holds"]
    ]
    if failed:
        raise ValueError(
            f"output differs from greedy decoding with {', '.join(failed)}; see {files[0]}"
        )


def _check(args: argparse.Namespace) -> None:
    check_numbers(args, 0, "live", "speed")
    check_numbers(args, 1, "num_drafts", "max_nodes", "held_out", "accept_texts")
    if args.accept:
        from lattice_bpd.verify import parse_acceptance

        for rule in args.accept:
            parse_acceptance(rule)
    if args.quick:
        if args.task or args.data or args.lm or args.domain_lm or args.heads:
            raise ValueError(
                "--quick brings heads, LMs and tasks of its own; remove --task, --data, --lm, "
                "--domain-lm and --heads, or --quick"
            )
        return
    if args.model is None or not args.task:
        raise ValueError("expected --quick, or --model DIR with --task NAME and --data FILE")
    if len(args.task) != len(args.data):
        raise ValueError(
            f"{len(args.task)} --task and {len(args.data)} --data; expected a file for each task"
        )
    if len(set(args.task)) != len(args.task):
        raise ValueError("a task occurs twice among --task; expected each once")


def _quick_source(args: argparse.Namespace, watcher: ConsoleWatcher) -> Source:
    import torch

    from lattice_bpd_kim2024.demo import library_text as corpus
    from lattice_bpd_kim2024.demo import recipe
    from lattice_bpd_kim2024.demo.model_folder import load_demo_model
    from lattice_bpd_kim2024.demo.quick import make_quick_source

    torch.set_num_threads(1)  # the model's matrices are too small to split
    try:
        demo = load_demo_model(args.model)
    except FileNotFoundError as error:
        other = "; for another model leave out --quick and give --task and --data"
        raise FileNotFoundError(f"{error}{other if args.model else ''}") from None
    if torch.cuda.is_available():
        demo.model.to("cuda")
    text = corpus.read_library_sources(max_files=recipe.QUICK.max_files)
    source = make_quick_source(
        args.out, demo, text, watcher, prompts=args.limit or _PROMPTS,
        rescorer=None if args.rescorer else demo.rescorer,
    )  # fmt: skip
    own = [] if demo.rescorer is None else [str(demo.rescorer)]
    _add_rescorers(source, args.rescorer or own)
    _add_domains(source, args)
    return source


def _user_source(args: argparse.Namespace) -> Source:
    from lattice_bpd_kim2024.demo.quick import Source
    from lattice_bpd_kim2024.tasks import find_task

    folders = find_folders(args.model, args.heads)
    path = find_tokenizer(args)
    tokenizer = load_tokenizer(path)
    record = make_record_options(args)
    prompts = {
        task: read_prompts(task, data, args, tokenizer)
        for task, data in zip(args.task, args.data, strict=True)
    }
    lms = load_lms(args.lm)
    model = load_folders(folders)
    record = add_stop_tokens(record, model, path)
    check_vocabularies(lms, model.vocab_size)
    files = {name: str(path) for name, path in name_files(args.lm, "--lm").items()}
    metrics = {task: metric for task in args.task if (metric := find_task(task).metric)}
    source = Source(
        model, str(args.model), tokenizer, str(path), prompts, lms, files, record,
        metrics=metrics,
    )  # fmt: skip
    _add_rescorers(source, args.rescorer)
    _add_domains(source, args)
    return source


def _add_rescorers(source: Source, values: list[str]) -> None:
    """Load the rescorers of --rescorer, if there are any."""
    if not values:
        return
    source.scorers = load_rescorers(values)
    check_vocabularies(source.scorers, source.model.vocab_size, "--rescorer")
    source.scorer_files = {
        name: str(path) for name, path in name_files(values, "--rescorer").items()
    }


def _add_domains(source: Source, args: argparse.Namespace) -> None:
    """Load the LMs and rescorers of single tasks, which are compared with those of all tasks."""
    from lattice_bpd_kim2024.demo.quick import DOMAIN

    vocab_size = source.model.vocab_size
    if args.domain_lm:
        files = _domain_files(args.domain_lm, "--domain-lm", source, source.lms)
        lms = load_lms(args.domain_lm, "--domain-lm")
        check_vocabularies(lms, vocab_size, "--domain-lm")
        source.domain_lms |= {task: {DOMAIN: lm} for task, lm in lms.items()}
        source.domain_lm_files |= {task: {DOMAIN: file} for task, file in files.items()}
    if args.domain_rescorer:
        files = _domain_files(args.domain_rescorer, "--domain-rescorer", source, source.scorers)
        scorers = load_rescorers(args.domain_rescorer, "--domain-rescorer")
        check_vocabularies(scorers, vocab_size, "--domain-rescorer")
        source.domain_scorers |= {task: {DOMAIN: scorer} for task, scorer in scorers.items()}
        source.domain_scorer_files |= {task: {DOMAIN: file} for task, file in files.items()}


def _domain_files(
    values: list[str], option: str, source: Source, general: Mapping[str, Any]
) -> dict[str, str]:
    """Paths by task, from "TASK=PATH"; refuses other tasks, and no general LM to compare with."""
    from lattice_bpd_kim2024.demo.quick import DOMAIN

    files = {task: str(path) for task, path in name_files(values, option).items()}
    for task in files:
        if task not in source.prompts:
            raise ValueError(
                f"{option}: {task} is not one of the tasks {', '.join(source.prompts)}; expected "
                f"{option} TASK=PATH"
            )
    other = option.replace("domain-", "")
    if not general:
        raise ValueError(f"{option} without {other}; give the one of all tasks, too")
    if DOMAIN in general:
        raise ValueError(f"{other} {DOMAIN}: the name is that of {option}; choose another")
    return files


def _lab_options(args: argparse.Namespace, source: Source) -> LabOptions:
    from dataclasses import replace

    from lattice_bpd_kim2024.lab.lab import LabOptions
    from lattice_bpd_kim2024.lab.run_folder import quick_options
    from lattice_bpd_kim2024.replay.strategies import find_strategies

    options = LabOptions(rules=tuple(args.accept), rule_texts=args.accept_texts)
    if args.quick:
        options = quick_options(options, source.record.top_k)
    changed: dict[str, Any] = {}
    if args.strategies:
        names = [strategy.name for strategy in find_strategies(args.strategies.split(","))]
        changed["strategies"] = tuple(name for name in names if name != "greedy")
    for name in ("alphas", "temperatures"):
        if getattr(args, name):
            changed[name] = parse_list(getattr(args, name), f"--{name}", float)
    changed["scorer_alphas"] = changed.get("alphas")
    changed |= {"speed_texts": args.speed, "held_out": args.held_out}
    sizes = {"num_drafts": args.num_drafts, "max_nodes": args.max_nodes}
    changed["options"] = replace(options.options, **_given(sizes))
    return replace(options, **_given(changed))


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _print(watcher: ConsoleWatcher, results: dict[str, Any]) -> None:
    """Block efficiencies and speeds, strategies x tasks, loops, and the target's performance."""
    tasks = results["tasks"]
    rows = [
        [line["label"], *(_interval(task["strategies"][number]) for task in tasks.values())]
        for number, line in enumerate(next(iter(tasks.values()))["strategies"])
    ]
    for label, key in (
        ("greedy's output in loops", "loop_share"), ("human text in loops", "human_loop_share")
    ):  # fmt: skip
        if all(key in task for task in tasks.values()):
            rows.append([label, *(f"{task[key]:.0%}" for task in tasks.values())])
    if any(task.get("performance") for task in tasks.values()):
        rows.append(["target's performance", *map(_performance, tasks.values())])
    _print_table(watcher, "block efficiency: tokens per call (95 % interval)", tasks, rows)
    speeds = [task["speed"] for task in tasks.values() if "speed" in task]
    if speeds:
        rows = [
            [line["label"], *(_speed(task[number]) for task in speeds)]
            for number, line in enumerate(speeds[0])
        ]
        title = (
            f"speed relative to greedy (tokens per call): {speeds[0][0]['texts']} texts decoded "
            f"live, median of {speeds[0][0]['rounds']} runs"
        )
        _print_table(watcher, title, tasks, rows)
    live = [check for task in tasks.values() for check in task.get("live", ())]
    if live:
        keys = ("texts", "lossless", "tied", "same_calls")
        texts, lossless, tied, same = (sum(check[key] for check in live) for key in keys)
        watcher.console.print(
            f"decoded live: {texts} texts, {lossless} with the output of greedy decoding; of the "
            f"{texts - lossless} that differ, {tied} do so at near-ties that rounding explains; "
            f"{same} texts with as many calls as the replay"
        )


def _print_table(
    watcher: ConsoleWatcher, title: str, tasks: Iterable[str], rows: list[list[str]]
) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("strategy", no_wrap=True)
    for task in tasks:
        table.add_column(task, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    watcher.console.print(table)


def _interval(line: dict[str, Any]) -> str:
    return "{value:.2f} ({low:.2f}-{high:.2f})".format(**line["interval"])


def _performance(task: dict[str, Any]) -> str:
    """The metric of the target's greedy output (paper table 1), such as LAMBADA's perplexity."""
    measured = task.get("performance")
    return "{metric} {value:.2f}".format(**measured) if measured else ""


def _speed(line: dict[str, Any]) -> str:
    differs = "" if line["lossless"] else ", NOT greedy's output"
    if line["differing"] and line["differing"] == line["near_ties"]:
        differs = f", {line['near_ties']} near-ties"
    return f"{line['relative_speed']:.2f}x ({line['block_efficiency']:.2f}{differs})"
