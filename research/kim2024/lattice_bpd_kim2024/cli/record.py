"""`lattice-bpd record`: decode a task once and keep the candidates of every head."""

from __future__ import annotations

import argparse
from pathlib import Path

from lattice_bpd.cli.options import add_heads_option
from lattice_bpd_kim2024.cli.evaluate_options import (
    add_recording_options,
    add_stop_tokens,
    find_folders,
    find_tokenizer,
    load_folders,
    load_tokenizer,
    make_record_options,
    read_prompts,
)

_EXAMPLE = """example (after `make demo`):
  lattice-bpd record --model demo-out/model --task humaneval --data HumanEval.jsonl.gz --out run
  lattice-bpd replay run --lm demo-out/model/ngram.lm --num-drafts 1,4,16

Run an interrupted command again to continue. research/kim2024/evaluate.md lists tasks and files.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `record`."""
    parser = commands.add_parser(
        "record",
        help="decode a task once and keep the heads' candidates for replays",
        description="Run the target once over a task's prompts and store, for each position of "
        "its greedy output, the best tokens and scores of every head, entropies and margins.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model", type=Path, required=True, metavar="DIR",
        help="a blockwise model, or an encoder-decoder with its SpecDrafter or BlockwiseHeads",
    )  # fmt: skip
    add_heads_option(parser)
    parser.add_argument("--task", required=True, help="such as squad; see evaluate.md")
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="the task's file")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the record")
    add_recording_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Record a task."""
    from lattice_bpd.extensions import require

    require("pyarrow", "lattice-bpd-kim2024")
    require("torch", "lattice-bpd-kim2024")
    from lattice_bpd.cli.progress import ConsoleWatcher, make_console
    from lattice_bpd_kim2024.record.write import TextProgress, write_record

    folders = find_folders(args.model, args.heads)
    path = find_tokenizer(args)
    tokenizer = load_tokenizer(path)
    options = make_record_options(args)
    prompts = read_prompts(args.task, args.data, args, tokenizer)
    model = load_folders(folders)
    options = add_stop_tokens(options, model, path)
    watcher = ConsoleWatcher(make_console(), {"record": f"recording {args.task}"})
    watcher.begin("record", len(prompts))
    manifest = write_record(
        args.out, model, prompts, options, task=args.task, model_name=str(args.model),
        tokenizer=str(path), on_text=TextProgress(watcher),
    )  # fmt: skip
    watcher.end()
    steps = sum(shard.steps for shard in manifest.shards if shard is not None)
    watcher.console.print(
        f"{manifest.num_texts:,} texts, {steps:,} steps, {manifest.num_slots} slots x "
        f"{manifest.top_k}, {manifest.bytes_per_step:,.0f} bytes per step: {args.out}"
    )
