"""Strategy "auto" against greedy and against every fixed size, on texts that differ in worth.

    python benchmarks/bench_controller.py [--quick]

A small Llama is trained first (half a minute). Four tasks:

    cycles    text like its training text: drafts are often right
    noise     random prompts with random continuations: drafts are rarely right
    loops     prompts that repeat themselves
    no heads  the same texts as cycles with heads that know nothing: drafts are never right

Every output is compared with greedy's. Strategies take turns, text by text, in an order that is
shuffled each time, since what ran before leaves the processor as it is. A text's time is the median
over rounds, a strategy's speed that of all texts together, and one size is in the table twice:
what it differs from itself is chance. "auto" has learned from the first round, which does not
count, as in a process that decodes for a while. Results go to benchmarks/results/controller.json;
`summary` has the worst ratios.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from typing import Any

import numpy as np
from corpus import ROOT
from decoding_model import VOCAB_SIZE, Subject, train_subject
from machine import describe_machine
from report import print_table, write_json

TOKENS = 96
FIXED = {f"tree {nodes}": {"max_nodes": nodes} for nodes in (4, 8, 12, 18, 36, 72)}
TWICE = "tree 8"
AGAIN = f"{TWICE} again"


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


def time_task(
    model: Any, lm: Any, prompts: list[list[int]], rounds: int, rng: np.random.Generator
) -> dict[str, float]:
    """Speed of each strategy against greedy's."""
    from lattice_bpd.decode import generate

    settings: dict[str, dict[str, Any]] = {
        "greedy": {"drafter": "greedy"},
        **{name: {"drafter": "tree", "lm": lm, **options} for name, options in FIXED.items()},
        AGAIN: {"drafter": "tree", "lm": lm, **FIXED[TWICE]},
        "auto": {"drafter": "auto", "lm": lm, "max_nodes": 72},
    }
    seconds = {name: np.zeros((rounds + 1, len(prompts))) for name in settings}
    for run in np.ndindex(rounds + 1, len(prompts)):
        prompt, outputs = prompts[run[1]], {}
        for name in rng.permutation(list(settings)):
            result = generate(model, prompt, max_new_tokens=TOKENS, **settings[name])
            outputs[name] = result.token_ids
            seconds[name][run] = result.stats.seconds["total"]
        for name, output in outputs.items():
            if output != outputs["greedy"]:
                raise AssertionError(f"{name} differs from greedy on {prompt}")
    total = {name: float(np.median(times[1:], axis=0).sum()) for name, times in seconds.items()}
    return {name: round(total["greedy"] / value, 3) for name, value in total.items()}


def summarize(tasks: dict[str, dict[str, float]]) -> dict[str, float]:
    """The worst of the tasks, and the most that one size differs from itself."""
    best = {task: max(row[name] for name in ("greedy", *FIXED)) for task, row in tasks.items()}
    return {
        "worst_against_greedy": min(row["auto"] for row in tasks.values()),
        "worst_against_best_fixed": round(
            min(row["auto"] / best[task] for task, row in tasks.items()), 3
        ),
        "same_size_twice": round(
            max(abs(row[AGAIN] / row[TWICE] - 1.0) for row in tasks.values()), 3
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer texts")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results" / "controller.json"
    )
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    count, rounds = (4, 2) if args.quick else (12, 7)
    subject = train_subject(count, 150 if args.quick else 400)
    rng = np.random.default_rng(2)
    tasks = {}
    for name, (model, prompts) in make_tasks(subject, count).items():
        tasks[name] = time_task(model, subject.lm, prompts, rounds, rng)
    names = list(next(iter(tasks.values())))
    print_table(
        "speed against greedy",
        ["task", *names],
        [[task, *row.values()] for task, row in tasks.items()],
    )
    summary = summarize(tasks)
    print_table("summary", ["figure", "value"], list(summary.items()))
    write_json(args.out, {"summary": summary, "machine": describe_machine(), "tasks": tasks})


if __name__ == "__main__":
    main()
