"""`lattice-bpd demo`: the main job end to end on real text. This file only wires the parts."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from lattice_bpd.evaluate.compare import Comparison
    from lattice_bpd.evaluate.corpus import Corpus
    from lattice_bpd.evaluate.parts import Parts
    from lattice_bpd.evaluate.recipe import Recipe
    from lattice_bpd.evaluate.repairs import Repair

_EXAMPLE = """example:
  lattice-bpd demo --quick --out demo-out
"""
_TITLES = {
    "corpus": "reading the standard library's sources",
    "tokenizer": "training a byte-level BPE",
    "encode": "encoding the corpus",
    "ngram": "training the n-gram LM",
    "heads": "training the blockwise LM",
    "tune": "tuning alpha",
    "decode": "decoding held-out prompts",
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `demo`."""
    parser = commands.add_parser(
        "demo",
        help="train a small model and decode with rescored drafts",
        description="Train a small blockwise LM and a Katz n-gram LM on the Python standard "
        "library's sources, decode held-out prompts with every strategy and print a table. A "
        "second run reuses the trained parts.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo-out"), metavar="DIR", help="default: demo-out"
    )
    parser.add_argument("--quick", action="store_true", help="less of everything, under 90 s")
    parser.add_argument("--retrain", action="store_true", help="train even if parts are there")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Train or load the parts, tune, decode, print and write results.json.

    Raises:
        ValueError: damaged parts, or a corpus without text.
        OSError: DIR cannot be written.
        ImportError: an extra is missing.
    """
    from lattice_bpd.cli.progress import ConsoleWatcher, make_console, quiet_transformers

    quiet_transformers()
    import torch

    from lattice_bpd.evaluate.corpus import read_library_sources
    from lattice_bpd.evaluate.recipe import FULL, QUICK

    torch.set_num_threads(min(torch.get_num_threads(), 4))  # more only get in each other's way
    start = time.perf_counter()
    recipe = QUICK if args.quick else FULL
    console = make_console()
    watcher = ConsoleWatcher(console, _TITLES)
    seconds: dict[str, float] = {}
    watcher.begin("corpus")
    corpus = read_library_sources(max_files=recipe.max_files)
    watcher.end()
    parts = _get_parts(args.out / recipe.name, recipe, corpus, watcher, args.retrain)
    seconds.update(parts.seconds)
    alphas, comparison, prompts = _measure(parts, recipe, corpus, watcher, seconds)
    alpha = max(alphas, key=lambda value: alphas[value])
    _print_results(console, comparison, recipe, alpha)
    _print_repairs(console, parts, _find_repairs(parts, recipe, comparison, prompts, alpha))
    seconds["total"] = time.perf_counter() - start
    results = _to_json(comparison, recipe, parts, alphas, alpha, seconds)
    _write_json(args.out / "results.json", results)
    console.print(
        f"\nmodel, tokenizer and LM: {args.out / recipe.name}\n"
        f"results: {args.out / 'results.json'}\n"
        f"{seconds['total']:.0f} s in all; try: lattice-bpd generate {args.out / recipe.name} "
        f"--alpha {alpha} --prompt 'def main('"
    )


def _get_parts(
    directory: Path, recipe: Recipe, corpus: Corpus, watcher: Any, retrain: bool
) -> Parts:
    import torch

    from lattice_bpd.evaluate.parts import load_parts, train_parts

    parts = None if retrain else load_parts(directory, recipe, corpus)
    if parts is None:
        parts = train_parts(directory, recipe, corpus, watcher)
    else:
        watcher.console.print(
            f"reusing the trained parts in {directory} (--retrain makes new ones)"
        )
    if torch.cuda.is_available():
        parts.model.to("cuda")
    return parts


def _measure(
    parts: Parts, recipe: Recipe, corpus: Corpus, watcher: Any, seconds: dict[str, float]
) -> tuple[dict[float, float], Comparison, list[list[int]]]:
    """Block efficiency by alpha on the tuning prompts; all strategies on the test prompts."""
    from lattice_bpd.evaluate.compare import compare_strategies
    from lattice_bpd.evaluate.corpus import draw_prompts
    from lattice_bpd.evaluate.settings import STANDARD_SETTINGS
    from lattice_bpd.evaluate.tuning import tune_alpha

    def draw(texts: list[str], count: int) -> list[list[int]]:
        length, room = recipe.prompt_length, recipe.max_new_tokens
        return draw_prompts(parts.encode(texts), count, length, room, recipe.seed)

    common: dict[str, Any] = {
        "top_k": recipe.top_k,
        "num_drafts": recipe.num_drafts,
        "max_new_tokens": recipe.max_new_tokens,
        "stop_token_ids": [parts.end_of_text],
    }
    start = time.perf_counter()
    tune = draw(corpus.tune, recipe.tune_prompts)
    watcher.begin("tune", len(tune) * len(recipe.alphas))
    alphas = tune_alpha(
        parts.model, parts.lm, tune, alphas=recipe.alphas, on_prompt=watcher.advance, **common
    )
    watcher.end()
    seconds["tune"] = time.perf_counter() - start
    start = time.perf_counter()
    prompts = draw(corpus.test, recipe.test_prompts)
    watcher.begin("decode", len(prompts) * len(STANDARD_SETTINGS))
    comparison = compare_strategies(
        parts.model,
        parts.lm,
        prompts,
        alpha=max(alphas, key=lambda value: alphas[value]),
        on_prompt=lambda setting: watcher.advance(note=setting.name),
        **common,
    )
    watcher.end()
    seconds["decode"] = time.perf_counter() - start
    return alphas, comparison, prompts


def _print_results(console: Console, comparison: Comparison, recipe: Recipe, alpha: float) -> None:
    from lattice_bpd.evaluate.table import footnotes, render_table

    names = {"p": recipe.num_drafts, "k": recipe.top_k, "n": recipe.order}
    title = (
        f"{len(comparison.looping)} held-out prompts, {recipe.max_new_tokens} new tokens each, "
        f"{recipe.num_heads} heads, k = {recipe.top_k}, p = {recipe.num_drafts}, alpha = {alpha}"
    )
    console.print()
    console.print(render_table(comparison, names, title))
    for line in footnotes(comparison):
        console.print(line)


def _find_repairs(
    parts: Parts, recipe: Recipe, comparison: Comparison, prompts: list[list[int]], alpha: float
) -> list[Repair]:
    from lattice_bpd.evaluate.repairs import find_repairs

    outputs = comparison.results[0].outputs
    return find_repairs(parts.model, parts.lm, prompts, outputs, top_k=recipe.top_k, alpha=alpha)


def _print_repairs(console: Console, parts: Parts, repairs: list[Repair]) -> None:
    from rich.markup import escape

    def show(tokens: list[int], accepted: int) -> str:
        pieces = [escape(repr(parts.tokenizer.decode([token]))[1:-1]) for token in tokens]
        kept = "[green]" + "|".join(pieces[:accepted]) + "[/green]" if accepted else ""
        rest = "|".join(pieces[accepted:])
        return f"{kept} >< {rest}  ({accepted} accepted)"

    console.print("\ndrafts before and after rescoring (accepted >< rejected, | between tokens):")
    for repair in repairs:
        context = escape(repr(parts.tokenizer.decode(repair.context[-16:]))[1:-1])
        console.print(f"  context  ...{context}")
        console.print(f"  before   {show(repair.before, repair.accepted_before)}")
        console.print(f"  after    {show(repair.after, repair.accepted_after)}")


def _to_json(
    comparison: Comparison,
    recipe: Recipe,
    parts: Parts,
    alphas: dict[float, float],
    alpha: float,
    seconds: dict[str, float],
) -> dict[str, Any]:
    """The whole of results.json."""
    return {
        "strategies": comparison.to_json(),
        "alpha": alpha,
        "top_k": recipe.top_k,
        "num_drafts": recipe.num_drafts,
        "order": parts.lm.order,
        "num_heads": recipe.num_heads,
        "prompts": len(comparison.looping),
        "loop_free_prompts": len(comparison.loop_free),
        "loop_share": comparison.loop_share,
        "block_efficiency_by_alpha": {str(key): value for key, value in alphas.items()},
        "reused": parts.reused,
        "training": parts.training,
        "seconds": seconds,
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)
