"""Strategy "auto" against greedy and against every fixed size, on texts that differ in worth.

    python benchmarks/bench_controller.py [--quick]

A small Llama is trained first (half a minute). Four tasks:

    cycles    text like its training text: drafts are often right
    noise     random prompts, behind which it wanders: drafts are seldom right
    loops     prompts that repeat themselves
    no heads  the same texts as cycles with heads that know nothing: drafts are never right

Every output is compared with greedy's. Strategies take turns, text by text, and each text begins
with another one, since what ran before leaves the processor as it is; a ratio is the median over
texts, each against greedy's run beside it. "auto" has learned from the first round, which does not
count, as in a process that decodes for a while. Results go to benchmarks/results/controller.json;
`summary` has the worst ratios.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from corpus import ROOT
from decoding_model import VOCAB_SIZE, Subject, train_subject
from machine import describe_machine
from report import print_table, write_json

TOKENS = 96
FIXED = {f"tree {nodes}": {"max_nodes": nodes} for nodes in (4, 8, 18, 36, 72)}


def make_tasks(subject: Subject, count: int) -> dict[str, tuple[Any, list[list[int]]]]:
    """Model and prompts by the task's name."""
    import torch

    rng = np.random.default_rng(1)
    blind = copy.deepcopy(subject.model)
    with torch.no_grad():
        for weight in blind.heads.parameters():
            weight.normal_(0.0, 1.0)
    noise = [rng.integers(0, VOCAB_SIZE, 32).tolist() for _ in range(count)]
    loops = [np.tile(rng.integers(0, VOCAB_SIZE, 8), 6).tolist() for _ in range(count)]
    return {
        "cycles": (subject.model, subject.prompts),
        "noise": (subject.model, noise),
        "loops": (subject.model, loops),
        "no heads": (blind, subject.prompts),
    }


def time_task(model: Any, lm: Any, prompts: list[list[int]], rounds: int) -> dict[str, float]:
    """Speed of each strategy against greedy's."""
    from lattice_bpd.decode import generate

    settings: dict[str, dict[str, Any]] = {
        "greedy": {"strategy": "greedy"},
        **{name: {"strategy": "tree", **options} for name, options in FIXED.items()},
        "auto": {"strategy": "auto", "max_nodes": 72},
    }
    ratios: dict[str, list[float]] = {name: [] for name in settings}
    turns = list(settings.items())
    for turn in range(rounds + 1):
        for prompt in prompts:
            turns = turns[1:] + turns[:1]
            found = {
                name: generate(model, prompt, lm=lm, max_new_tokens=TOKENS, **options)
                for name, options in turns
            }
            for name, result in found.items():
                if result.token_ids != found["greedy"].token_ids:
                    raise AssertionError(f"{name} differs from greedy on {prompt}")
                if turn > 0:
                    greedy = found["greedy"].stats.tokens_per_second
                    ratios[name].append(result.stats.tokens_per_second / greedy)
    return {name: round(median(values), 3) for name, values in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer texts")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results" / "controller.json"
    )
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    count, rounds = (4, 2) if args.quick else (12, 5)
    subject = train_subject(count, 150 if args.quick else 400)
    tasks = {}
    for name, (model, prompts) in make_tasks(subject, count).items():
        tasks[name] = time_task(model, subject.lm, prompts, rounds)
    names = list(next(iter(tasks.values())))
    print_table(
        "speed against greedy",
        ["task", *names],
        [[task, *row.values()] for task, row in tasks.items()],
    )
    summary = {
        "worst_against_greedy": min(row["auto"] for row in tasks.values()),
        "worst_against_best_fixed": round(
            min(row["auto"] / max(row[n] for n in names if n != "auto") for row in tasks.values()),
            3,
        ),
    }
    print_table("summary", ["figure", "value"], list(summary.items()))
    write_json(args.out, {"summary": summary, "machine": describe_machine(), "tasks": tasks})


if __name__ == "__main__":
    main()
