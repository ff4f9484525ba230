"""What block_drafter.py and transition_scores.py share: block drafter, tuning and table."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from stories260k_parts import FULL, QUICK, Prepared, Recipe

from lattice_bpd import NGramLM
from lattice_bpd.cli.progress import ConsoleWatcher
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd_drafters.block_drafter import BlockDrafter
from lattice_bpd_drafters.block_run import train_block_drafter
from lattice_bpd_drafters.block_training import BlockTrainOptions
from lattice_bpd_drafters.config import BlockDrafterConfig
from lattice_bpd_kim2024.evaluate import Comparison, Recording, Setting, render_table
from lattice_bpd_kim2024.live.table import footnotes

MASK = 0  # <unk>, which never occurs in stories


@dataclass(frozen=True)
class BlockRecipe:
    """Every number of the block drafter, and of the other domain.

    Attributes:
        config: its sizes. The target has 5 layers of width 64.
        training: how it is trained.
        shift_beginnings: beginnings of the other domain that the target continues, for its LM.
        shift_prompts: held-out beginnings of the other domain to decode, and as many to tune on.
    """

    config: BlockDrafterConfig
    training: BlockTrainOptions
    shift_beginnings: int = 1600
    shift_prompts: int = 48


SIZES = BlockDrafterConfig(
    hidden_size=64, num_layers=2, num_heads=4, num_kv_heads=4, head_dim=16, intermediate_size=172,
    vocab_size=512, target_hidden_size=64, hidden_layers=(0, 2, 4), block_size=9,
    mask_token_id=MASK,
)  # fmt: skip
FULL_BLOCK = BlockRecipe(SIZES, BlockTrainOptions(steps=3000), 3200, 96)
QUICK_BLOCK = BlockRecipe(SIZES, BlockTrainOptions(steps=2500))
# As much text as in full: a block drafter gains more from text than heads do.
QUICK_STORIES = replace(
    QUICK, prompt_lengths=FULL.prompt_lengths, stories=FULL.stories, steps=1000, test_prompts=32
)


def cached_drafter(made: Prepared, block: BlockRecipe, watcher: ConsoleWatcher) -> BlockDrafter:
    """The trained block drafter, in the z-lab format."""
    path = made.work / f"block_drafter-{block.training.steps}"
    if (path / "config.json").is_file():
        drafter = BlockDrafter.from_pretrained(path)
        drafter.attach(made.base)
        return drafter
    drafter = train_block_drafter(
        made.base, list(made.rows), block.config, block.training, watcher=watcher
    )
    drafter.save_pretrained(path)
    return drafter


def tune(
    replays: dict[str, Recording], settings: Sequence[Setting], lm: NGramLM, recipe: Recipe,
    watcher: ConsoleWatcher,
) -> dict[str, DraftConfig]:  # fmt: skip
    """The best alpha and temperature of each line, by replays of texts that are not reported on."""
    plain = DraftConfig(
        top_k=recipe.top_k, num_drafts=recipe.num_drafts, max_nodes=recipe.max_nodes
    )
    options = {setting.name: plain for setting in settings}
    tuned = [line for line in settings if line.strategy in ("ngram", "p_best", "chain", "tree")]
    watcher.begin("tuning alpha and temperature", len(tuned))
    for setting in tuned:
        alphas = recipe.alphas if setting.uses_lm else (0.0,)
        has_temperature = setting.strategy in ("chain", "tree")
        temperatures = recipe.temperatures if has_temperature else (1.0,)
        replay = replays[setting.name.split("_")[0]]
        tried = [
            replace(plain, alpha=alpha, temperature=temperature)
            for alpha, temperature in itertools.product(alphas, temperatures)
        ]
        efficiencies = [replay.block_efficiency(setting, lm, option) for option in tried]
        options[setting.name] = tried[int(np.argmax(efficiencies))]
        watcher.advance()
    watcher.end()
    return options


def print_table(
    console: Any, comparison: Comparison, domain: str, recipe: Recipe, order: int
) -> None:
    """The table of one domain, and what its columns mean."""
    names = {"p": recipe.num_drafts, "k": recipe.top_k, "n": order, "nodes": recipe.max_nodes}
    title = (
        f"stories260K, {len(comparison.looping)} held-out beginnings of {domain}, "
        f"{recipe.max_new_tokens} new tokens, 8 slots, k = {recipe.top_k}"
    )
    console.print()
    console.print(render_table(comparison, names, title))
    for line in footnotes(comparison):
        console.print(line)


def describe(option: DraftConfig) -> dict[str, float]:
    """The tuned values."""
    return {"alpha": option.alpha, "temperature": option.temperature}


def count_parameters(module: Any) -> int:
    """Numbers that training sets."""
    return sum(weight.numel() for weight in module.parameters())


def write_results(path: Path, results: dict[str, Any]) -> None:
    """Write a results file as a whole."""
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)
