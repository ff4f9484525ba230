"""Faster decoding of a pretrained model: heads, n-gram LM and trees for stories260K.

    python examples/stories260k.py --quick
    python examples/stories260k.py --quick --all

The model is a Llama of 260 K parameters that was trained on TinyStories, not by us. It stays
frozen: it generates greedy continuations of story beginnings, on which eight draft heads and an
n-gram LM are trained. Weights of the LM are tuned on other beginnings than those of the table.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from stories260k_parts import (
    BEGIN,
    FULL,
    QUICK,
    Recipe,
    prepare,
)
from stories260k_scorers import (
    ALL_SETTINGS,
    FULL_SCORERS,
    QUICK_SCORERS,
    ScorerRecipe,
    make_sources,
    tune_lines,
)

from lattice_bpd import NGramLM
from lattice_bpd.cli.progress import ConsoleWatcher, make_console
from lattice_bpd.decode import DecodeStats
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd_kim2024.blockwise import BlockwiseLM
from lattice_bpd_kim2024.evaluate import (
    Comparison,
    Recording,
    Setting,
    compare_strategies,
    record,
    render_table,
)
from lattice_bpd_kim2024.live.table import footnotes
from lattice_bpd_kim2024.replay.strategies import TREE_SETTINGS

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
ROUND = 8  # prompts of a round of the sweep
SETTINGS = {setting.name: setting for setting in TREE_SETTINGS}


def main(
    arguments: Sequence[str] | None = None, recipe: Recipe | None = None,
    scorers: ScorerRecipe | None = None,
) -> None:  # fmt: skip
    """Train or load, tune, decode, print."""
    args = read_arguments(arguments)
    recipe = recipe or (QUICK if args.quick else FULL)
    scorers = scorers or (QUICK_SCORERS if args.quick else FULL_SCORERS)
    torch.set_num_threads(1)  # matrices this small only lose by being shared out
    start = time.perf_counter()
    console = make_console()
    watcher = ConsoleWatcher(console, {})
    made = prepare(args, recipe, "quick" if args.quick else "full", watcher)
    beginnings, lm, model = made.found, made.lm, made.model
    replay = record_greedy(model, lm, beginnings.tune, recipe)
    options, tuned = tune(replay, lm, recipe, watcher)
    settings, sources = list(TREE_SETTINGS), None
    if args.all:
        sources = make_sources(made, recipe, scorers, watcher)
        more = tune_lines(model, beginnings.tune, replay, sources, recipe, scorers, watcher)
        options, tuned = {**options, **more[0]}, {**tuned, **more[1]}
        settings[-1:-1] = ALL_SETTINGS  # the oracle stays last
    by_name = None if sources is None else sources.by_name
    comparison = measure(model, lm, beginnings.test, settings, options, recipe, watcher, by_name)
    names = {"p": recipe.num_drafts, "k": recipe.top_k, "n": lm.order, "nodes": recipe.max_nodes}
    title = (
        f"stories260K, {len(beginnings.test)} held-out beginnings, "
        f"{recipe.max_new_tokens} new tokens, "
        f"{recipe.num_heads - 1} draft heads, k = {recipe.top_k}"
    )
    console.print()
    console.print(render_table(comparison, names, title))
    for line in (*footnotes(comparison), *ratios(comparison)):
        console.print(line)
    if args.sweep:
        console.print(sweep(model, lm, beginnings.test, options, recipe, watcher))
    seconds = time.perf_counter() - start
    console.print(f"{seconds:.0f} s in all; text and heads are kept in {made.work}")
    if args.json is not None:
        results = to_json(comparison, recipe, options, tuned, lm, seconds)
        temporary = args.json.with_name(f".{args.json.name}")
        temporary.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        temporary.replace(args.json)


def make_parser(description: str | None = __doc__) -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="less of everything, under 120 s")
    parser.add_argument(
        "--all", action="store_true", help="scorers, n-grams of other texts and a cache as well"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write results there, too")
    parser.add_argument("--sweep", action="store_true", help="lists and trees of many sizes")
    parser.add_argument(
        "--model", type=Path, metavar="DIR", default=DATA / "stories260K",
        help="folder with stories260K.bin and tok512.model (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--text", type=Path, metavar="FILE", default=DATA / "tinystories" / "tinystories_10k.txt",
        help="stories whose beginnings to use, <|endoftext|> between them; where there is no such "
        "file, the model's own stories are taken",
    )  # fmt: skip
    parser.add_argument(
        "--work", type=Path, metavar="DIR", default=Path("demo-out") / "stories260k",
        help="where text and heads are kept (default: %(default)s)",
    )  # fmt: skip
    return parser


def read_arguments(
    arguments: Sequence[str] | None, description: str | None = __doc__
) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(description)
    args = parser.parse_args(arguments)
    check_model(args, parser)
    return args


def check_model(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """End with an error unless --model is the folder of stories260K."""
    if not (args.model / "stories260K.bin").is_file():
        parser.error(
            f"{args.model} has no stories260K.bin; expected the model of llama2.c "
            "(research/kim2024/RESULTS.md says where it is); give its folder by --model DIR"
        )


def record_greedy(
    model: BlockwiseLM, lm: NGramLM, prompts: list[list[int]], recipe: Recipe
) -> Recording:
    """Greedy's output after the prompts, for replays."""
    greedy = measure(model, lm, prompts, [SETTINGS["greedy"]], {}, recipe, None)
    return record(model, prompts, greedy.results[0].outputs, top_k=recipe.top_k)


def tune(
    replay: Recording, lm: NGramLM, recipe: Recipe, watcher: ConsoleWatcher
) -> tuple[dict[str, DraftConfig], dict[str, dict[str, float]]]:
    """The best alpha and temperature of each setting, and the block efficiency of all tried."""
    grids: dict[str, Iterable[tuple[float, float]]] = {
        "p_best_ngram": itertools.product(recipe.alphas, [1.0]),
        "tree_0gram": itertools.product([0.0], recipe.temperatures),
        "tree": itertools.product(recipe.alphas, recipe.temperatures),
    }
    sizes = DraftConfig(
        top_k=recipe.top_k, num_drafts=recipe.num_drafts, max_nodes=recipe.max_nodes
    )
    options = dict.fromkeys(SETTINGS, sizes)
    tuned: dict[str, dict[str, float]] = {}
    watcher.begin("tuning alpha and temperature", len(grids))
    for name, grid in grids.items():
        tried = {replace(sizes, alpha=a, temperature=t): 0.0 for a, t in grid}
        for option in tried:
            tried[option] = replay.block_efficiency(SETTINGS[name], lm, option)
        options[name] = max(tried, key=lambda option: tried[option])
        tuned[name] = {f"{o.alpha}, {o.temperature}": value for o, value in tried.items()}
        watcher.advance()
    watcher.end()
    return options, tuned


def measure(
    model: BlockwiseLM, lm: NGramLM, prompts: list[list[int]], settings: Sequence[Setting],
    options: dict[str, DraftConfig], recipe: Recipe, watcher: ConsoleWatcher | None,
    sources: Mapping[str, Any] | None = None,
) -> Comparison:  # fmt: skip
    """Decode all prompts with all settings."""
    if watcher is not None:
        watcher.begin("decoding held-out beginnings", len(prompts) * len(settings))
    comparison = compare_strategies(
        model, lm, prompts, settings=settings, options=options,
        sources=sources,
        max_new_tokens=recipe.max_new_tokens, stop_token_ids=[BEGIN],
        on_prompt=None if watcher is None else lambda setting: watcher.advance(note=setting.name),
    )  # fmt: skip
    if watcher is not None:
        watcher.end()
    return comparison


def ratios(comparison: Comparison) -> list[str]:
    """Block efficiency against BPD's and speed against greedy's, a line for each strategy."""
    totals = {result.setting.name: result.total() for result in comparison.results}
    bpd, greedy = totals["bpd"].block_efficiency, totals["greedy"].tokens_per_second
    return [
        f"{name}: {total.block_efficiency / bpd:.2f} x BPD's block efficiency, "
        f"{total.tokens_per_second / greedy:.2f} x greedy's speed, "
        f"{total.verified_tokens / total.target_calls:.1f} draft tokens a call"
        for name, total in totals.items()
        if name not in ("greedy", "oracle")
    ]


def sweep(
    model: BlockwiseLM, lm: NGramLM, prompts: list[list[int]],
    options: dict[str, DraftConfig], recipe: Recipe, watcher: ConsoleWatcher,
) -> str:  # fmt: skip
    """Lists of 1 to 16 drafts and trees of 4 to 144 nodes, by verified tokens."""
    settings, chosen = [SETTINGS["greedy"]], {}
    for kind, field, sizes in (
        ("p_best_ngram", "num_drafts", (1, 2, 4, 8, 16)),
        ("tree", "max_nodes", (4, 8, 12, 18, 24, 36, 72, 144)),
    ):
        for size in sizes:
            settings.append(replace(SETTINGS[kind], name=f"{kind} {size}"))
            chosen[settings[-1].name] = replace(options[kind], **{field: size})
    totals = {setting.name: DecodeStats() for setting in settings}
    speeds: dict[str, list[float]] = {setting.name: [] for setting in settings}
    watcher.begin("sweeping sizes", -(-len(prompts) // ROUND))
    for start in range(0, len(prompts), ROUND):  # in rounds: other work disturbs all sizes alike
        part = prompts[start : start + ROUND]
        comparison = measure(model, lm, part, settings, chosen, recipe, None)
        greedy = comparison.results[0].total().tokens_per_second
        for result in comparison.results:
            totals[result.setting.name].merge(result.total())
            speeds[result.setting.name].append(result.total().tokens_per_second / greedy)
        watcher.advance()
    watcher.end()
    lines = ["strategy          verified  block eff.  x greedy's speed, median of the rounds"]
    for name, total in list(totals.items())[1:]:
        lines.append(
            f"{name:<16} {total.verified_tokens / total.target_calls:9.1f} "
            f"{total.block_efficiency:11.2f} {statistics.median(speeds[name]):17.2f}"
        )
    return "\n".join(lines)


def to_json(
    comparison: Comparison, recipe: Recipe, options: dict[str, DraftConfig],
    tuned: dict[str, dict[str, float]], lm: NGramLM, seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """The format of the demo's results.json."""
    return {
        "strategies": comparison.to_json(),
        "alpha": options["p_best_ngram"].alpha,
        "tree_alpha": options["tree"].alpha,
        "tree_temperature": options["tree"].temperature,
        "top_k": recipe.top_k,
        "num_drafts": recipe.num_drafts,
        "max_nodes": recipe.max_nodes,
        "order": lm.order,
        "num_heads": recipe.num_heads,
        "prompts": len(comparison.looping),
        "loop_free_prompts": len(comparison.loop_free),
        "loop_share": comparison.loop_share,
        "block_efficiency_by_alpha_and_temperature": tuned,
        "seconds": {"total": seconds},
    }


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"stories260k: {error}")
