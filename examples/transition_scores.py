"""Transition scores in the lattice: what trained pairs, a 4-gram and the search each add.

    python examples/transition_scores.py --quick
    python examples/transition_scores.py --quick --json results.json

A low-rank selector (DFlash2) is trained for the eight heads of stories260K and for the block
drafter of block_drafter.py: it scores pairs of candidates of adjacent slots. Each line of the table
is DRAFTER/SCORES/SEARCH:

DRAFTER  heads, or block: the block drafter
SCORES   unary: the slots' own; pairs: with the selector; ngram: with the 4-gram; pairs_ngram: both
SEARCH   argmax, greedy_walk (how DFlash2 drafts), best_path, expected_length (the chain of greatest
         expected accepted length), p_best (16 paths), tree18, tree36

alpha, temperature and the normalization of unary + 4-gram scores are tuned on other beginnings.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from block_parts import (
    FULL_BLOCK,
    QUICK_BLOCK,
    QUICK_STORIES,
    BlockRecipe,
    cached_drafter,
    print_table,
    write_results,
)
from stories260k import measure, read_arguments
from stories260k_parts import FULL, Prepared, Recipe, prepare
from transition_parts import (
    SCORES,
    SEARCHES,
    RecordingDrafter,
    WalkDrafter,
    config_of,
    tune_search,
)

from lattice_bpd.cli.progress import ConsoleWatcher, make_console
from lattice_bpd.decode import DraftingModel, decode
from lattice_bpd.decode.state.selector_heads import SelectorHeads
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.evaluate import Setting
from lattice_bpd.models import BlockDrafter, BlockwiseLM
from lattice_bpd.models.block_drafter.selector import CandidateSelector
from lattice_bpd.train.selector.options import SelectorOptions
from lattice_bpd.train.selector.training import train_selector


@dataclass(frozen=True)
class PairRecipe:
    """How selectors are trained."""

    selector: SelectorOptions


FULL_PAIRS = PairRecipe(SelectorOptions(steps=1500))
QUICK_PAIRS = PairRecipe(SelectorOptions(steps=600))


def main(
    arguments: Sequence[str] | None = None, recipe: Recipe | None = None,
    block: BlockRecipe | None = None, pairs: PairRecipe | None = None,
) -> None:  # fmt: skip
    """Train or load, tune, decode, print."""
    args = read_arguments(arguments, __doc__)
    recipe = recipe or (QUICK_STORIES if args.quick else FULL)
    block = block or (QUICK_BLOCK if args.quick else FULL_BLOCK)
    pairs = pairs or (QUICK_PAIRS if args.quick else FULL_PAIRS)
    torch.set_num_threads(1)  # matrices this small only lose by being shared out
    start, console = time.perf_counter(), make_console()
    watcher = ConsoleWatcher(console, {})
    made = prepare(args, recipe, "block-quick" if args.quick else "full", watcher)
    drafter = cached_drafter(made, block, watcher)
    sources = {
        "heads/unary": made.model.heads,
        "heads/pairs": SelectorHeads(
            made.model, cached_selector(made, made.model.heads, "heads", pairs, watcher)
        ),
        "block/unary": drafter,
        "block/pairs": with_selector(
            drafter, cached_selector(made, drafter, "block", pairs, watcher)
        ),
    }
    settings, options = [Setting("greedy", "greedy", "greedy")], {}
    for name, heads in sources.items():
        added = tuned_lines(name, heads, made, recipe, watcher)
        settings += [setting for setting, _ in added]
        options.update({setting.name: option for setting, option in added})
    found = measure(
        BlockwiseLM(made.base, heads=drafter), made.lm, made.found.test, settings, options, recipe,
        watcher,
    )  # fmt: skip
    print_table(console, found, "stories", recipe, made.lm.order)
    seconds = time.perf_counter() - start
    console.print(f"{seconds:.0f} s in all; text, heads and selectors are kept in {made.work}")
    if args.json is not None:
        results = {
            "strategies": found.to_json(),
            "options": {
                name: {"alpha": option.alpha, "temperature": option.temperature,
                       "normalization": option.normalization}
                for name, option in options.items()
            },
            "prompts": len(made.found.test), "loop_share": found.loop_share,
            "seconds": {"total": seconds},
        }  # fmt: skip
        write_results(args.json, results)


def cached_selector(
    made: Prepared, heads: Any, name: str, pairs: PairRecipe, watcher: ConsoleWatcher
) -> CandidateSelector:
    """The trained selector of heads or drafter."""
    path = made.work / f"selector-{name}-{pairs.selector.steps}"
    if path.is_dir():
        return CandidateSelector.from_pretrained(path)
    trained = train_selector(made.base, heads, list(made.rows), pairs.selector, watcher)
    trained.selector.save_pretrained(path)
    return trained.selector


def with_selector(drafter: BlockDrafter, selector: CandidateSelector) -> BlockDrafter:
    """A copy of the drafter that scores transitions."""
    copied = copy.deepcopy(drafter)
    copied.use_selector(selector)
    return copied


def tuned_lines(
    name: str, heads: Any, made: Prepared, recipe: Recipe, watcher: ConsoleWatcher
) -> list[tuple[Setting, DraftConfig]]:
    """The lines of one drafter with or without pairs, without and with the 4-gram."""
    drafter, scores = name.split("/")
    recorder = RecordingDrafter(recipe.top_k)
    results = decode(
        DraftingModel(made.base, heads), made.found.tune, recorder,
        max_new_tokens=recipe.max_new_tokens, stop_token_ids=[1],
    )  # fmt: skip
    texts = [
        prompt + result.token_ids for prompt, result in zip(made.found.tune, results, strict=True)
    ]
    lines = []
    for lm in (None, made.lm):
        label = f"{drafter}/{SCORES[scores, lm is not None]}"
        searches = [search for search in SEARCHES if search != "argmax" or label.endswith("unary")]
        watcher.begin(f"tuning {label}", len(searches))
        for search in searches:
            config = tune_search(recorder, texts, search, lm, recipe, has_pairs=scores == "pairs")
            lines.append((setting_of(f"{label}/{search}", search, heads, lm is not None), config))
            watcher.advance()
        watcher.end()
    if scores == "unary":
        oracle = Setting(
            f"{drafter}/oracle", f"{drafter}/oracle (k = {{k}})", "oracle", heads=heads
        )
        lines.append((oracle, config_of("argmax", recipe)))
    return lines


def setting_of(name: str, search: str, heads: Any, uses_lm: bool) -> Setting:
    """A line of the table."""
    strategy = SEARCHES[search]
    setting = Setting(name, name, strategy, uses_lm=uses_lm, heads=heads)
    if search == "greedy_walk":
        return replace(setting, make=lambda lm, _output, config: WalkDrafter(lm, config))
    return setting


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"transition_scores: {error}")
