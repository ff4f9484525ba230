"""Our peers beside us: same target, prompts and machine, interleaved in one run.

    python benchmarks/bench_peers.py --json FILE            trains what is missing first
    python benchmarks/bench_peers.py --json FILE --quick    a smoke test: little training, 4 prompts

From transformers: greedy decoding, assisted generation with a draft model, prompt lookup.
Rebuilt on the same heads (peer_trees.py) and verified by our loop: Medusa's fixed tree, EAGLE-2's
dynamic tree, DDTree's heap; and a suffix automaton. Ours: draft models, lookup, and the strategies.

Every output must be that of the target's own `generate(do_sample=False)`, or nothing is printed.
Calls are counted by a hook on the target, for all lines alike, on all prompts; times are taken in
further rounds on some of them. All lines decode a prompt in turn, in an order that is shuffled anew
for each prompt and round.
Trees have the same number of nodes. What has weights to choose is tuned, and Medusa's tree fitted,
on the target's output of other prompts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import transformers
from corpus import ROOT, SHARED
from machine import describe_machine
from peer_drafters import CallCounter, generate_with_transformers
from peer_lines import Line, Run, make_lines, make_peer_trees
from peer_tables import render
from peer_targets import FULL, MAX_NODES, NAMES, QUICK, Fit, Size, Target, fit, load_targets
from report import write_json

import lattice_bpd.decode.drafters as ld
from lattice_bpd.build.bootstrap import bootstrap_ratio
from lattice_bpd.cli.progress import ConsoleWatcher, make_console, quiet_transformers
from lattice_bpd.decode import decode
from lattice_bpd.verify import CausalLMTarget
from lattice_bpd_kim2024.live.compare import find_difference

REFERENCE = "tree"  # what all lines are compared with


def measure(
    target: Target, lines: Sequence[Line], timed_prompts: int, rounds: int
) -> list[list[int]]:
    """Fill the lines: round 0 decodes all prompts, each further one the first `timed_prompts`.

    Returns:
        The target's greedy output of each prompt.

    Raises:
        AssertionError: a line's output is not the target's, or calls were counted wrongly.
    """
    greedy = [
        generate_with_transformers(
            target.base, prompt, target.max_new_tokens, target.stop_token_ids
        )
        for prompt in target.prompts
    ]
    rng = np.random.default_rng(0)
    with CallCounter(target.base) as counter:
        CausalLMTarget(target.base).refuses_tree()  # probes of the target, with the hook, are calls
        longest = max([*target.tune_prompts, *target.prompts], key=len)  # some are of its length
        for line in lines:
            line.decode(longest)
        for turn in range(rounds + 1):
            start = time.perf_counter()
            for line in lines:
                line.rounds.append([])
            for number, prompt in enumerate(target.prompts[: timed_prompts if turn else None]):
                for line in [lines[n] for n in rng.permutation(len(lines))]:
                    output, run = line.run(prompt, counter)
                    check_output(target, line.name, number, output, greedy[number])
                    check_count(target, line.name, number, run)
                    line.rounds[-1].append(run)
            what = f"round {turn} of {rounds}" if turn else "outputs are the target's"
            say(f"{target.name}: {what}, {time.perf_counter() - start:.0f} s")
    return greedy


def check_count(target: Target, name: str, number: int, run: Run) -> None:
    """Raise AssertionError unless our loop counted as many calls as the hook."""
    if run.own_calls not in (None, run.calls):
        raise AssertionError(
            f"{target.name}, {name}, prompt {number}: the loop counted {run.own_calls} calls, "
            f"the hook on the target {run.calls}"
        )


def check_output(
    target: Target, name: str, number: int, output: list[int], expected: list[int]
) -> None:
    """Raise AssertionError unless a line's output is the target's greedy one."""
    if output == expected:
        return
    found = find_difference(target.heads, number, target.prompts[number], expected, output)
    raise AssertionError(
        f"{target.name}, {name}: the output of prompt {number} differs from the target's "
        f"generate(do_sample=False) at token {found.position}, where its two best logits are "
        f"{found.margin:.2g} apart"
    )


def measure_budgets(
    target: Target, found: Fit, greedy: list[list[int]], budgets: Sequence[int]
) -> list[dict[str, Any]]:
    """Tokens per call of all trees by their number of nodes."""
    rows = []
    for nodes in budgets:
        trees = {
            **{name: drafter for name, (_, drafter) in make_peer_trees(found, nodes).items()},
            "tree_0gram": ld.TreeDrafter(None, found.options["tree_0gram"], max_nodes=nodes),
            "tree": ld.TreeDrafter(target.lm, found.options["tree"], max_nodes=nodes),
        }
        row: dict[str, Any] = {"nodes": nodes}
        for name, drafter in trees.items():
            results = decode(target.model, target.prompts, drafter, **target.limits)
            for number, result in enumerate(results):
                check_output(target, name, number, result.token_ids, greedy[number])
            calls = sum(result.stats.target_calls for result in results)
            row[name] = sum(map(len, greedy)) / calls
        rows.append(row)
    return rows


def describe(lines: Sequence[Line], greedy: list[list[int]]) -> list[dict[str, Any]]:
    """The figures of each line; ratios of speeds are within a round."""
    by_name = {line.name: line for line in lines}
    seconds = {line.name: line.seconds_by_round() for line in lines}
    tokens = np.array([len(output) for output in greedy])
    timed_tokens = tokens[: len(lines[0].rounds[1])].sum()
    reference = [run.calls for run in by_name[REFERENCE].rounds[0]]
    rows = []
    for line in lines:
        calls = np.array([run.calls for run in line.rounds[0]])
        drafted = sum(run.draft_positions for run in line.rounds[0])
        gain = bootstrap_ratio(reference, calls, less=1.0)
        rows.append(
            {
                "name": line.name,
                "label": line.label,
                "group": line.group,
                "tokens_per_call": bootstrap_ratio(tokens, calls).to_json(),
                "over_tree": gain.to_json(),
                "draft_tokens_per_call": float(drafted / (calls - 1).sum()),
                "speed": _ratio(seconds["greedy"], seconds[line.name]),
                "speed_in_own_loop": _ratio(seconds[line.greedy], seconds[line.name]),
                "tokens_per_second": float(timed_tokens / median(seconds[line.name])),
            }
        )
    return rows


def _ratio(baseline: Any, seconds: Any) -> dict[str, float]:
    """How much faster than the baseline: median, least and greatest of the rounds."""
    ratios = (baseline / seconds).tolist()
    return {"median": median(ratios), "low": min(ratios), "high": max(ratios)}


def measure_target(target: Target, size: Size) -> dict[str, Any]:
    """Everything about one target, for the results."""
    found = fit(target, size)
    lines = make_lines(target, found)
    greedy = measure(target, lines, size.timed_prompts, size.rounds)
    budgets = measure_budgets(target, found, greedy, size.budgets)
    return {
        "name": target.name,
        "about": target.about,
        "prompts": len(greedy),
        "tokens": sum(map(len, greedy)),
        "max_new_tokens": target.max_new_tokens,
        "timed_prompts": min(size.timed_prompts, len(greedy)),
        "rounds": size.rounds,
        "tuned_on_tokens": found.tokens,
        "tuned": {
            name: {"alpha": one.alpha, "temperature": one.temperature}
            for name, one in found.options.items()
        },
        "draft_model_parameters": target.draft_model.num_parameters(),
        "machine": {**describe_machine(), "torch_threads": torch.get_num_threads()},
        "transformers": transformers.__version__,
        "skipped": {},
        "lines": describe(lines, greedy),
        "budgets": budgets,
    }


def say(text: str) -> None:
    """Progress, apart from the results."""
    print(f"bench_peers: {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the results there, too; those of other targets stay",
    )
    parser.add_argument("--quick", action="store_true", help="little training, few prompts")
    parser.add_argument("--targets", default=",".join(NAMES), help="default: %(default)s")
    parser.add_argument(
        "--prompts", type=int,
        help=f"of each target (default: {FULL.prompts}); training holds them out, so another "
        "number trains anew",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, help=f"timed rounds (default: {FULL.rounds})")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", default=SHARED,
        help="has stories260K/ and tinystories/ (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--work", type=Path, metavar="DIR", default=ROOT / "build" / "peers",
        help="keeps what was trained (default: %(default)s)",
    )  # fmt: skip
    args = parser.parse_args()
    size = QUICK if args.quick else FULL
    for name in ("prompts", "rounds"):
        value = getattr(args, name)
        if value is not None:
            if value < 1:
                parser.error(f"--{name} is {value}; expected 1 or more")
            size = replace(size, **{name: value})
    torch.set_num_threads(1)  # models this small are slower on several
    quiet_transformers()
    console = make_console()
    console.file = sys.stderr
    try:
        names = args.targets.split(",")
        others = read_others(args.json, names)
        targets = load_targets(names, args.work, args.data, size, ConsoleWatcher(console, {}))
    except (OSError, ValueError) as error:
        sys.exit(f"bench_peers: {error}")
    found = [measure_target(target, size) | {"quick": args.quick} for target in targets]
    print(render({"targets": found}))
    if args.json is not None:
        merged = sorted([*others, *found], key=lambda one: (one["name"] not in NAMES, one["name"]))
        write_json(args.json, {"nodes": MAX_NODES, "targets": merged})


def read_others(path: Path | None, names: Sequence[str]) -> list[dict[str, Any]]:
    """The results that a file has of targets that are not measured now.

    Raises:
        ValueError: the file holds something else.
    """
    if path is None or not path.is_file():
        return []
    try:
        targets = json.loads(path.read_text(encoding="utf-8"))["targets"]
        return [target for target in targets if target["name"] not in names]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} has no results of this benchmark ({error!r}); give another file by --json, or "
            "delete it"
        ) from error


if __name__ == "__main__":
    main()
