"""The gain of an n-gram cache on stories260K, with and without loops in the output.

    python examples/stories260k_cache.py             # 120 beginnings, 128 new tokens each
    python examples/stories260k_cache.py --tokens 256

Heads, n-gram LM and weights are those of `stories260k.py --quick`, with more beginnings held out.
A position of greedy's output loops if the 8 tokens that end there occurred earlier in the
text; an output loops if a tenth of its positions do. Weights are tuned without a cache. "own" is
the time of a verifying step without the models, "lookup" the part of it that extends trees past
the lattice.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from stories260k import ROUND, measure, read_arguments, record_greedy, tune
from stories260k_parts import QUICK, Recipe, prepare

from lattice_bpd.cli.progress import ConsoleWatcher, make_console
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.evaluate import Comparison, Setting
from lattice_bpd.evaluate.live.compare import StrategyResult
from lattice_bpd.evaluate.replay.settings import TREE_SETTINGS

LOOPING = 0.1  # share of its positions from which on an output counts as looping
RECIPE = replace(QUICK, max_new_tokens=128, tune_prompts=40, test_prompts=120)
TREES = ("tree_0gram", "tree")


@dataclass(frozen=True)
class Group:
    """Outputs of which a share above `low` and up to `high` of the positions loops."""

    name: str
    low: float
    high: float

    def prompts(self, comparison: Comparison) -> list[int]:
        """Numbers of the prompts whose greedy outputs are in it."""
        pairs = zip(comparison.looping, comparison.results[0].outputs, strict=True)
        shares = [count / len(output) for count, output in pairs]
        return [number for number, share in enumerate(shares) if self.low < share <= self.high]


BELOW = LOOPING - 1e-9  # the edge itself is looping
GROUPS = (
    Group("all", -1.0, 1.0), Group("looping", BELOW, 1.0), Group("others", -1.0, BELOW),
    Group("loop-free", -1.0, 0.0),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None, recipe: Recipe = RECIPE) -> None:
    """Train or load, tune, decode, print."""
    own, rest = read_own(arguments, recipe)
    args = read_arguments(rest)
    recipe = replace(recipe, max_new_tokens=own.tokens)
    torch.set_num_threads(1)  # matrices this small only lose by being shared out
    start = time.perf_counter()
    console = make_console()
    watcher = ConsoleWatcher(console, {})
    made = prepare(args, recipe, "cache", watcher)
    beginnings, lm, model = made.found, made.lm, made.model
    options, _ = tune(record_greedy(model, lm, beginnings.tune, recipe), lm, recipe, watcher)
    options["tree_0gram"] = replace(options["tree_0gram"], alpha=0.5)  # matters to a cache alone
    settings, options = with_caches(options)
    watcher.begin("decoding held-out beginnings", -(-len(beginnings.test) // ROUND))
    rounds = []
    for first in range(0, len(beginnings.test), ROUND):  # in rounds: other work disturbs all alike
        part = beginnings.test[first : first + ROUND]
        rounds.append(measure(model, lm, part, settings, options, recipe, None))
        watcher.advance()
    watcher.end()
    comparison = join(rounds)
    results = to_json(comparison, options)
    for line in table(results, recipe):
        console.print(line, highlight=False)
    console.print(
        f"{time.perf_counter() - start:.0f} s in all; text and heads are kept in {made.work}"
    )
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def read_own(
    arguments: Sequence[str] | None, recipe: Recipe
) -> tuple[argparse.Namespace, list[str]]:
    """The option of this program, and those of stories260k.py."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--tokens", type=int, default=recipe.max_new_tokens)
    own, rest = parser.parse_known_args(arguments)
    if own.tokens < 1:
        parser.error(f"--tokens is {own.tokens}; expected 1 or more")
    return own, rest


def with_caches(
    options: dict[str, DraftConfig],
) -> tuple[list[Setting], dict[str, DraftConfig]]:
    """Greedy, and each tree without and with a cache."""
    by_name = {setting.name: setting for setting in TREE_SETTINGS}
    settings, chosen = [by_name["greedy"]], {}
    for name in TREES:
        cached = replace(by_name[name], name=f"{name}_cache")
        settings += [by_name[name], cached]
        chosen[name] = options[name]
        chosen[cached.name] = replace(options[name], ngram_cache=True)
    return settings, chosen


def join(rounds: Sequence[Comparison]) -> Comparison:
    """The comparison of all prompts, of those of some after the others."""
    whole = Comparison([StrategyResult(result.setting) for result in rounds[0].results], [])
    for part in rounds:
        before = len(whole.looping)
        for all_of_it, result in zip(whole.results, part.results, strict=True):
            all_of_it.stats += result.stats
            all_of_it.outputs += result.outputs
            all_of_it.differing += [
                replace(difference, prompt=difference.prompt + before)
                for difference in result.differing
            ]
        whole.looping += part.looping
    return whole


def to_json(comparison: Comparison, options: dict[str, DraftConfig]) -> dict[str, Any]:
    """Block efficiency of each tree by group, without and with a cache, and the times of a step."""
    by_name = {result.setting.name: result for result in comparison.results}
    content: dict[str, Any] = {"groups": {}, "trees": {}}
    for group in GROUPS:
        content["groups"][group.name] = len(group.prompts(comparison))
    for name in options:
        total = by_name[name].total()
        steps = total.target_calls - len(by_name[name].stats)
        content["trees"][name] = {
            "block_efficiency": {
                group.name: by_name[name].total(group.prompts(comparison)).block_efficiency
                for group in GROUPS
            },
            "lossless": by_name[name].lossless,
            "alpha": options[name].alpha,
            "temperature": options[name].temperature,
            "own_microseconds": 1e6 * total.own_seconds / steps,
            "lookup_microseconds": 1e6 * total.seconds.get("lookup", 0.0) / steps,
            "tokens_per_second": {
                group.name: by_name[name].total(group.prompts(comparison)).tokens_per_second
                for group in GROUPS
            },
        }
    return content


def table(results: dict[str, Any], recipe: Recipe) -> list[str]:
    """Lines to print."""
    counts = " ".join(f"{name} ({count})".rjust(17) for name, count in results["groups"].items())
    lines = [
        "",
        f"block efficiency without and with a cache, {recipe.max_new_tokens} new tokens",
        f"{'tree':<18}{counts}  = greedy",
    ]
    for name in TREES:
        plain, cached = results["trees"][name], results["trees"][f"{name}_cache"]
        both = [(plain["block_efficiency"][g], cached["block_efficiency"][g])
                for g in results["groups"]]  # fmt: skip
        label = "heads and LM" if name == "tree" else "heads alone"
        same = "yes" if plain["lossless"] and cached["lossless"] else "NO"
        values = " ".join(f"{a:.2f} -> {b:.2f}".rjust(17) for a, b in both)
        gains = " ".join((f"{b / a - 1.0:+.1%}" if a else "-").rjust(17) for a, b in both)
        faster = [(plain["tokens_per_second"][g], cached["tokens_per_second"][g])
                  for g in results["groups"]]  # fmt: skip
        speeds = " ".join((f"{b / a - 1.0:+.1%}" if a else "-").rjust(17) for a, b in faster)
        lines += [f"{label:<18}{values}  {same}", f"{'':<18}{gains}", f"{'  tokens/s':<18}{speeds}"]
        for title, line in (("without", plain), ("with", cached)):
            lines.append(
                f"  {title:<8}alpha {line['alpha']}, temperature {line['temperature']}, own "
                f"{line['own_microseconds']:.0f} us a step, {line['lookup_microseconds']:.0f} of "
                "them lookup"
            )
    return lines


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"stories260k_cache: {error}")
