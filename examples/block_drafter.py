"""A block drafter for stories260K: chains, lists and trees of its slots, with an n-gram LM.

    python examples/block_drafter.py --quick
    python examples/block_drafter.py --quick --json results.json

A block drafter (DFlash) reads hidden states of several layers of the target and predicts a block of
tokens in one forward. This example trains one for the frozen stories260K, beside the eight heads of
stories260k.py, and decodes held-out beginnings with both:

heads_argmax       the most likely token of each head (BPD)
heads_tree_ngram   36 nodes of the heads' lattice, with the 4-gram
block_argmax       the drafter's own chain, as DFlash drafts
block_tree         36 nodes by the slots' probabilities alone (DDTree's construction)
block_best_ngram   the best path of its lattice, with the 4-gram
block_chain_ngram  the chain of greatest expected accepted length, with the 4-gram
block_p_best_ngram the 16 best paths, with the 4-gram
block_tree_ngram   36 nodes, with the 4-gram
oracle             the best path of its lattice in hindsight

A second table has another domain: beginnings of Shakespeare, which the drafter did not train on,
with the 4-gram of stories and with one of the target's output after such beginnings.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from block_parts import (
    FULL_BLOCK,
    QUICK_BLOCK,
    QUICK_STORIES,
    BlockRecipe,
    cached_drafter,
    count_parameters,
    describe,
    print_table,
    tune,
    write_results,
)
from stories260k import DATA, measure, read_arguments, record_greedy
from stories260k_parts import FULL, Prepared, Recipe, prepare, train_lm

from lattice_bpd.cli.progress import ConsoleWatcher, make_console
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.models import BlockwiseLM
from lattice_bpd.train.corpus import load_encoder
from lattice_bpd_drafters.block_drafter import BlockDrafter
from lattice_bpd_kim2024.evaluate import Comparison, Setting
from lattice_bpd_kim2024.heads.self_generated import generate_texts


def main(
    arguments: Sequence[str] | None = None, recipe: Recipe | None = None,
    block: BlockRecipe | None = None,
) -> None:  # fmt: skip
    """Train or load, tune, decode, print."""
    args = read_arguments(arguments, __doc__)
    recipe = recipe or (QUICK_STORIES if args.quick else FULL)
    block = block or (QUICK_BLOCK if args.quick else FULL_BLOCK)
    torch.set_num_threads(1)  # matrices this small only lose by being shared out
    start, console = time.perf_counter(), make_console()
    watcher = ConsoleWatcher(console, {})
    made = prepare(args, recipe, "block-quick" if args.quick else "full", watcher)
    drafter = cached_drafter(made, block, watcher)
    both = {"heads": made.model, "block": BlockwiseLM(made.base, heads=drafter)}
    settings = block_settings(made.model.heads, drafter)
    replays = {
        name: record_greedy(model, made.lm, made.found.tune, recipe) for name, model in both.items()
    }
    options = tune(replays, settings, made.lm, recipe, watcher)
    stories = measure(
        both["block"], made.lm, made.found.test, settings, options, recipe, watcher
    )  # fmt: skip
    print_table(console, stories, "stories", recipe, made.lm.order)
    shifted, shift_options = decode_shifted(
        args, made, both["block"], settings, options, recipe, block, watcher
    )  # fmt: skip
    print_table(console, shifted, "Shakespeare", recipe, made.lm.order)
    seconds = time.perf_counter() - start
    console.print(f"{seconds:.0f} s in all; text, heads and drafter are kept in {made.work}")
    if args.json is not None:
        results = {
            "strategies": stories.to_json(),
            "shift": shifted.to_json(),
            "options": {name: describe(option) for name, option in options.items()},
            "shift_options": {name: describe(option) for name, option in shift_options.items()},
            "parameters": {
                "target": count_parameters(made.base), "heads": count_parameters(made.model.heads),
                "block_drafter": count_parameters(drafter),
            },
            "lm_ngrams": sum(made.lm.num_ngrams), "order": made.lm.order,
            "prompts": len(made.found.test), "shift_prompts": block.shift_prompts,
            "loop_share": stories.loop_share, "shift_loop_share": shifted.loop_share,
            "seconds": {"total": seconds},
        }  # fmt: skip
        write_results(args.json, results)


def block_settings(heads: Any, drafter: BlockDrafter) -> list[Setting]:
    """The lines of the table; greedy first, the oracle last."""
    lines = [
        Setting("greedy", "greedy", "greedy"),
        Setting("heads_argmax", "heads: argmax (BPD)", "bpd", heads=heads),
        Setting("heads_tree_ngram", "heads: {nodes}-node {n}-gram tree", "tree", True, heads=heads),
        Setting("block_argmax", "block: argmax (DFlash)", "bpd"),
        Setting("block_tree", "block: {nodes}-node tree of marginals", "tree"),
        Setting("block_best_ngram", "block: {n}-gram, best path", "ngram", uses_lm=True),
        Setting("block_chain_ngram", "block: {n}-gram, chain", "chain", uses_lm=True),
        Setting("block_p_best_ngram", "block: {n}-gram, {p} best paths", "p_best", uses_lm=True),
        Setting("block_tree_ngram", "block: {nodes}-node {n}-gram tree", "tree", uses_lm=True),
        Setting("oracle", "block: oracle (k = {k})", "oracle"),
    ]
    return [line if line.heads is not None else replace(line, heads=drafter) for line in lines]


def decode_shifted(
    args: argparse.Namespace, made: Prepared, model: BlockwiseLM, settings: Sequence[Setting],
    options: dict[str, DraftConfig], recipe: Recipe, block: BlockRecipe, watcher: ConsoleWatcher,
) -> tuple[Comparison, dict[str, DraftConfig]]:  # fmt: skip
    """Another domain: with the LM of stories as tuned there, and with an LM of that domain."""
    train, tune_prompts, test = shifted_beginnings(args, recipe, block)
    watcher.begin("writing text after beginnings of another domain")
    rows = generate_texts(made.base, train, recipe.row_length - recipe.prompt_length)
    watcher.end()
    own = train_lm(rows, recipe)
    with_lm = [line for line in settings if line.name.startswith("block") and line.uses_lm]
    adapted = [
        replace(line, name=f"{line.name}_domain", label=f"{line.label}, LM of the domain",
                source="domain")
        for line in with_lm
    ]  # fmt: skip
    replay = record_greedy(model, own, tune_prompts, recipe)
    chosen = tune({"block": replay}, adapted, own, recipe, watcher)
    lines = [*settings[:-1], *adapted, settings[-1]]
    comparison = measure(
        model, made.lm, test, lines, {**options, **chosen}, recipe, watcher,
        sources={"domain": own},
    )  # fmt: skip
    return comparison, chosen


def shifted_beginnings(
    args: argparse.Namespace, recipe: Recipe, block: BlockRecipe
) -> tuple[np.ndarray, list[list[int]], list[list[int]]]:
    """Pieces of Shakespeare: prompts for the LM's training text, to tune on, and to report on."""
    text = (DATA / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8")
    ids = load_encoder(str(args.model / "tok512.model")).encode([text])[0]
    length, count = recipe.prompt_length, block.shift_beginnings + 2 * block.shift_prompts
    starts = np.linspace(0, len(ids) - length, count).astype(int)
    pieces = np.stack([np.concatenate([[1], ids[start : start + length - 1]]) for start in starts])
    order = np.random.default_rng(0).permutation(count)
    held_out, train = order[: 2 * block.shift_prompts], order[2 * block.shift_prompts :]
    tune_part, test = np.split(pieces[held_out], 2)
    return pieces[np.sort(train)], tune_part.tolist(), test.tolist()


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"block_drafter: {error}")
