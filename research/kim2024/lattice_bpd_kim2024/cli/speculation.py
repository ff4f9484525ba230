"""`lattice-bpd speculation`: what a draft model gains under sampling, predicted and measured."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd_kim2024.cli.evaluate_options import (
    check_numbers,
    find_tokenizer,
    load_own_tokenizer,
    load_tokenizer,
    parse_list,
    read_prompts,
)

if TYPE_CHECKING:
    from rich.console import Group

    from lattice_bpd_kim2024.live.speculation import SpeculationRun

_EPILOG = """example:
  lattice-bpd speculation MODEL --draft-model SMALL --task text --data text.txt \\
      --accept rejection:1.0 --accept sampled:0.7 --draft-lengths 1,2,4,8

Cost is the time of a call of the draft model in calls of the target, overhead that of drafting
besides these calls, for each draft token. Tokens per call and speed are predicted from cost and
acceptance rate (Leviathan et al. 2023) and, in brackets, measured; speed and operations are
relative to sampling without drafts. "acceptance" is the mean over all tokens, "judged" that of the
draft tokens that were judged, beside the measured share of them.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `speculation`."""
    parser = commands.add_parser(
        "speculation",
        help="what a draft model gains under sampling, predicted and measured",
        description="Sample the continuations of a task's prompts with drafts of a small model.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="a causal LM")
    parser.add_argument(
        "--draft-model", type=Path, required=True, metavar="DIR",
        help="a small causal LM with the same tokenizer",
    )  # fmt: skip
    parser.add_argument("--task", required=True, help="such as text; see evaluate.md")
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="the task's file")
    parser.add_argument(
        "--accept", action="append", default=[], metavar="RULE",
        help="rejection:.. or sampled:..; repeatable (default: rejection:1.0)",
    )  # fmt: skip
    parser.add_argument(
        "--draft-lengths", default="1,2,4,8", metavar="G,..", help="default 1,2,4,8"
    )
    parser.add_argument("--tokenizer", type=Path, help="or its folder (default: MODEL's own)")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N examples of the file")
    parser.add_argument("--field", help="field with the text, for task jsonl")
    parser.add_argument("--prompt-tokens", type=int, metavar="T", help="of task text (default 48)")
    parser.add_argument("--max-new-tokens", type=int, default=64, metavar="M", help="default 64")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Measure, print and write."""
    from lattice_bpd.atomic_files import write_text
    from lattice_bpd.cli.files import check_output, load_causal_lm
    from lattice_bpd.cli.progress import ConsoleWatcher, make_console
    from lattice_bpd.models.checkpoint import find_stop_tokens
    from lattice_bpd.verify import Rejection, Sampled, parse_acceptance
    from lattice_bpd_kim2024.live.speculation import measure_speculation

    check_numbers(args, 1, "limit", "max_new_tokens")
    if args.json is not None:
        check_output(args.json, takes_devices=True)
    lengths = parse_list(args.draft_lengths, "--draft-lengths", int)
    rules = [parse_acceptance(rule) for rule in args.accept] or [Rejection()]
    for rule in rules:
        if not isinstance(rule, (Rejection, Sampled)):
            raise ValueError(f"--accept: {rule} does not sample; expected rejection:.. or sampled:")
    path = find_tokenizer(args)
    tokenizer = load_tokenizer(path)
    prompts = [prompt.token_ids for prompt in read_prompts(args.task, args.data, args, tokenizer)]
    model, draft_model = load_causal_lm(args.model), load_causal_lm(args.draft_model)
    watcher = ConsoleWatcher(make_console(), {})
    watcher.begin("sampling", len(rules) * (1 + len(lengths)) * len(prompts))
    runs = measure_speculation(
        model, draft_model, prompts, rules, lengths,  # type: ignore[arg-type]
        max_new_tokens=args.max_new_tokens, on_text=watcher.advance,
        stop_token_ids=find_stop_tokens(model, load_own_tokenizer(path)),
    )  # fmt: skip
    watcher.end()
    if args.json is not None:
        lines = [one.to_json() for one in runs]
        write_text(args.json, json.dumps({"speculation": lines}, indent=2) + "\n")
    watcher.console.print(make_table(runs))


def make_table(runs: list[SpeculationRun]) -> Group:
    """A table of each rule: predictions, and in brackets what was measured."""
    from rich.console import Group
    from rich.table import Table

    columns = (
        "length", "acceptance", "judged", "tokens/call", "cost", "overhead", "speed", "best",
        "operations",
    )  # fmt: skip
    tables: dict[str, Table] = {}
    for one in runs:
        line: dict[str, Any] = one.to_json()
        title = f"{line['rule']}: predicted (measured)"
        if title not in tables:
            tables[title] = Table(title=title, title_justify="left")
            for column in columns:
                tables[title].add_column(column, justify="right", no_wrap=True)
        tables[title].add_row(
            f"{line['draft_length']}",
            f"{line['acceptance_rate']:.3f}",
            f"{line['judged_acceptance_rate']:.3f} ({line['measured_acceptance_rate']:.3f})",
            f"{line['tokens_per_call']:.2f} ({line['measured_tokens_per_call']:.2f})",
            f"{line['cost']:.2f}", f"{line['overhead']:.2f}",
            f"{line['improvement']:.2f} ({line['measured_improvement']:.2f})",
            f"{line['best_draft_length']}", f"{line['operations_factor']:.2f}",
        )  # fmt: skip
    return Group(*tables.values())
