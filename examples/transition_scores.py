"""Transition scores in the lattice: what trained pairs, a 4-gram and the search each add.

    python examples/transition_scores.py --quick
    python examples/transition_scores.py --quick --json results.json
    python examples/transition_scores.py --quick --shifted --heads-only
    python examples/transition_scores.py --quick --model demo --shifted

A low-rank selector (DFlash2) is trained for the eight heads of stories260K and for the block
drafter of block_drafter.py: it scores pairs of candidates of adjacent slots. Each line of the table
is DRAFTER/SCORES/SEARCH:

DRAFTER  heads, or block: the block drafter
SCORES   unary: the slots' own; pairs: with the selector; ngram: with the 4-gram; pairs_ngram: both
SEARCH   argmax, greedy_walk (how DFlash2 drafts), best_path, expected_length (the chain of greatest
         expected accepted length), p_best (16 paths), tree18, tree36

alpha, temperature and the normalization of unary + 4-gram scores are tuned on other beginnings.
Pairs and 4-gram learn from the same text, which the target generated.

--shifted decodes beginnings of another domain too (Shakespeare, or pieces of the file that is
given): neither heads, pairs nor 4-gram have seen any of it, and nothing is tuned on it.
--model demo does all of this with the demo's model (Python code, 1.4 M parameters) and its heads;
no block drafter is trained for it.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from block_parts import (
    FULL_BLOCK,
    QUICK_BLOCK,
    QUICK_STORIES,
    BlockRecipe,
    cached_drafter,
    write_results,
)
from stories260k import DATA, check_model, make_parser
from stories260k_parts import BEGIN, FULL, Prepared, Recipe, prepare
from transition_demo import FULL_DEMO, QUICK_DEMO, prepare_demo
from transition_parts import (
    SCORES,
    SEARCHES,
    RecordingDrafter,
    WalkDrafter,
    config_of,
    tune_search,
)
from transition_results import (
    decode_together,
    describe_gains,
    gains,
    require_lossless,
    short_table,
    to_json,
)

from lattice_bpd.cli.progress import ConsoleWatcher, make_console
from lattice_bpd.decode import DraftingModel, decode
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.train.corpus import load_encoder
from lattice_bpd_drafters.block_drafter import BlockDrafter
from lattice_bpd_drafters.selector import CandidateSelector, SelectorHeads
from lattice_bpd_drafters.selector_run import train_selector
from lattice_bpd_drafters.selector_texts import SelectorOptions
from lattice_bpd_kim2024.evaluate import Comparison, Setting

SHAKESPEARE = DATA / "tinyshakespeare" / "input.txt"


@dataclass(frozen=True)
class PairRecipe:
    """How selectors are trained."""

    selector: SelectorOptions


FULL_PAIRS = PairRecipe(SelectorOptions(steps=1500))
QUICK_PAIRS = PairRecipe(SelectorOptions(steps=600))


@dataclass
class Case:
    """A target with what drafts for it.

    Attributes:
        name: of the model, for tables.
        domain: of the text.
        made: target, heads, text, 4-gram.
        recipe: of text and decoding.
        block: of the block drafter; None: there is none.
        pairs: of the selectors.
        begin: tokens that every prompt begins with.
        stop: the token that ends a text.
        encode: text -> token ids.
    """

    name: str
    domain: str
    made: Prepared
    recipe: Recipe
    block: BlockRecipe | None
    pairs: PairRecipe
    begin: list[int]
    stop: int
    encode: Callable[[str], Sequence[int]]


def main(
    arguments: Sequence[str] | None = None, recipe: Recipe | None = None,
    block: BlockRecipe | None = None, pairs: PairRecipe | None = None,
) -> None:  # fmt: skip
    """Train or load, tune, decode, print."""
    args = read_options(arguments)
    torch.set_num_threads(1)  # matrices this small only lose by being shared out
    start, console = time.perf_counter(), make_console()
    watcher = ConsoleWatcher(console, {})
    pairs = pairs or (QUICK_PAIRS if args.quick else FULL_PAIRS)
    prepare_case = demo_case if str(args.model) == "demo" else stories_case
    case = prepare_case(args, recipe, block, pairs, watcher)
    made, recipe = case.made, case.recipe
    sources = {
        "heads/unary": made.model.heads,
        "heads/pairs": SelectorHeads(
            made.model.heads, cached_selector(made, made.model.heads, "heads", case.pairs, watcher)
        ),
    }
    if case.block is not None and not args.heads_only:
        drafter = cached_drafter(made, case.block, watcher)
        sources["block/unary"] = drafter
        sources["block/pairs"] = with_selector(
            drafter, cached_selector(made, drafter, "block", case.pairs, watcher)
        )
    settings, options = [Setting("greedy", "greedy", "greedy")], {}
    for name, heads in sources.items():
        added = tuned_lines(name, heads, case, watcher)
        settings += [setting for setting, _ in added]
        options.update({setting.name: option for setting, option in added})

    def decode_all(prompts: list[list[int]], domain: str) -> Comparison:
        found = decode_together(
            made.model, made.lm, prompts, settings, options, recipe, case.stop, watcher
        )  # fmt: skip
        console.print(
            f"\n{case.name}, {len(prompts)} beginnings of {domain}, {recipe.max_new_tokens} new "
            f"tokens, k = {recipe.top_k}; {found.loop_share:.0%} of the output is in loops"
        )
        for line in (*short_table(found), *describe_gains(gains(found))):
            console.print(line, markup=False, soft_wrap=True)
        require_lossless(found)
        return found

    found = decode_all(made.found.test, case.domain)
    shifted = None
    if args.shifted is not None:
        domain = "Shakespeare" if args.shifted == SHAKESPEARE else args.shifted.stem
        shifted = decode_all(shifted_prompts(args.shifted, case), domain)
    seconds = time.perf_counter() - start
    console.print(f"{seconds:.0f} s in all; text, heads and selectors are kept in {made.work}")
    if args.json is not None:
        results = {
            "strategies": to_json(found),
            "gains": gains(found),
            "options": {
                name: {"alpha": option.alpha, "temperature": option.temperature,
                       "normalization": option.normalization}
                for name, option in options.items()
            },
            "prompts": len(made.found.test), "loop_share": found.loop_share,
            "seconds": {"total": seconds},
        }  # fmt: skip
        if shifted is not None:
            results["shift"] = to_json(shifted)
            results["shift_gains"] = gains(shifted)
            results["shift_loop_share"] = shifted.loop_share
        write_results(args.json, results)


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--shifted", type=Path, nargs="?", const=SHAKESPEARE, metavar="FILE",
        help="decode beginnings of another domain too, pieces of this text (default: Shakespeare)",
    )  # fmt: skip
    parser.add_argument(
        "--heads-only", action="store_true", help="without the block drafter, which trains long"
    )
    args = parser.parse_args(arguments)
    if str(args.model) != "demo":
        check_model(args, parser)
    return args


def stories_case(
    args: argparse.Namespace, recipe: Recipe | None, block: BlockRecipe | None, pairs: PairRecipe,
    watcher: ConsoleWatcher,
) -> Case:  # fmt: skip
    """stories260K."""
    recipe = recipe or (QUICK_STORIES if args.quick else FULL)
    block = block or (QUICK_BLOCK if args.quick else FULL_BLOCK)
    made = prepare(args, recipe, "block-quick" if args.quick else "full", watcher)
    encoder = load_encoder(str(args.model / "tok512.model"))
    return Case(
        "stories260K", "stories", made, recipe, block, pairs, [BEGIN], BEGIN,
        lambda text: encoder.encode([text])[0],
    )  # fmt: skip


def demo_case(
    args: argparse.Namespace, recipe: Recipe | None, block: BlockRecipe | None, pairs: PairRecipe,
    watcher: ConsoleWatcher,
) -> Case:  # fmt: skip
    """The demo's model with its heads; pairs learn from text that it generates."""
    recipe = recipe or (QUICK_DEMO if args.quick else FULL_DEMO)
    made, demo = prepare_demo(args, recipe, watcher)
    own = replace(pairs.selector, first_position=recipe.prompt_length)
    return Case(
        "the demo's model", "Python code", made, recipe, block, PairRecipe(own), [],
        demo.settings.end_of_text, lambda text: demo.tokenizer.encode(text).ids,
    )  # fmt: skip


def shifted_prompts(path: Path, case: Case) -> list[list[int]]:
    """As many beginnings as in the first table, from evenly spaced pieces of a text."""
    ids = case.encode(path.read_text(encoding="utf-8"))
    length = case.recipe.prompt_length - len(case.begin)
    starts = np.linspace(0, len(ids) - length, case.recipe.test_prompts).astype(int)
    return [case.begin + [int(token) for token in ids[s : s + length]] for s in starts]


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
    name: str, heads: Any, case: Case, watcher: ConsoleWatcher
) -> list[tuple[Setting, DraftConfig]]:
    """The lines of one drafter with or without pairs, without and with the 4-gram."""
    drafter, scores = name.split("/")
    made, recipe = case.made, case.recipe
    recorder = RecordingDrafter(recipe.top_k)
    results = decode(
        DraftingModel(made.base, heads), made.found.tune, recorder,
        max_new_tokens=recipe.max_new_tokens, stop_token_ids=[case.stop],
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
