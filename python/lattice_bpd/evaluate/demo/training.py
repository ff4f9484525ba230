"""Trains a small demo model from scratch, tunes it and writes its folder."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lattice_bpd.decode.drafters.drafter import NoDrafter
from lattice_bpd.decode.loop.decode import decode
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.watcher import Watcher
from lattice_bpd_kim2024.demo.library_text import Corpus, draw_prompts
from lattice_bpd_kim2024.demo.model_folder import DemoModel, DemoSettings
from lattice_bpd_kim2024.demo.parts import Parts, load_parts, train_parts
from lattice_bpd_kim2024.demo.recipe import DraftRecipe, Recipe
from lattice_bpd_kim2024.replay.replay import Recording, record
from lattice_bpd_kim2024.replay.strategies import DEMO_SETTINGS


def train_demo_model(
    directory: Path, recipe: Recipe, corpus: Corpus, watcher: Watcher, *, retrain: bool = False
) -> tuple[DemoModel, Parts]:
    """Train the parts missing in the directory, tune alpha and temperature, write demo.json.

    Args:
        directory: a demo model folder afterwards; see `load_demo_model`.
        recipe: sizes and steps.
        corpus: trained on and tuned on.
        watcher: notified of the stages.
        retrain: train even if the directory has parts of this recipe and corpus.

    Returns:
        The model, and its parts with statistics of their training.

    Raises:
        FormatError: damaged parts.
        OSError: the directory cannot be written.
    """
    parts = None if retrain else load_parts(directory, recipe, corpus)
    parts = parts or train_parts(directory, recipe, corpus, watcher)
    start = time.perf_counter()
    watcher.begin("tune", recipe.tune_prompts)
    recording = _record_greedy(parts, recipe, corpus, watcher)
    tried = tune_drafts(recording, parts.lm, recipe)
    watcher.end()
    parts.seconds["tune"] = time.perf_counter() - start
    by_alpha = {str(o.alpha): value for o, value in tried["p_best_ngram"].items()}
    training = {**parts.training, "block_efficiency_by_alpha": by_alpha}
    settings = tuned_settings(recipe, tried, parts.end_of_text, training)
    settings.save(directory)
    return DemoModel(directory, parts.tokenizer, parts.model, parts.lm, settings), parts


Tried = dict[str, dict[DraftConfig, float]]


def tune_drafts(recording: Recording, lm: NGramLM, recipe: DraftRecipe) -> Tried:
    """Replay the demo's settings with each weight of the LM and temperature of trees.

    Args:
        recording: of greedy outputs.
        lm: n-gram LM.
        recipe: the values to try.

    Returns:
        Block efficiency by options, by the name of the setting.
    """
    grids: dict[str, Iterable[tuple[float, float]]] = {
        "bpd": [(0.0, 1.0)],
        "p_best_0gram": [(0.0, 1.0)],
        "p_best_ngram": itertools.product(recipe.alphas, [1.0]),
        "tree_0gram": itertools.product([0.0], recipe.temperatures),
        "tree": itertools.product(recipe.alphas, recipe.temperatures),
    }
    sizes = DraftConfig("tree", recipe.top_k, recipe.num_drafts, recipe.max_nodes)
    settings = {setting.name: setting for setting in DEMO_SETTINGS}
    return {
        name: {
            (
                options := replace(sizes, alpha=alpha, temperature=temperature)
            ): recording.block_efficiency(settings[name], lm, options)
            for alpha, temperature in grid
        }
        for name, grid in grids.items()
    }


def tuned_settings(
    recipe: DraftRecipe,
    tried: Tried,
    end_of_text: int,
    training: dict[str, Any],
    loops: dict[str, float] | None = None,
) -> DemoSettings:
    """demo.json of a model, with the best of what `tune_drafts` tried.

    Args:
        recipe: sizes.
        tried: block efficiency by options, by the name of the setting.
        end_of_text: the token id that ends a document.
        training: how the model was trained.
        loops: see DemoSettings.
    """
    best = {
        name: max(efficiencies, key=lambda option: efficiencies[option])
        for name, efficiencies in tried.items()
    }
    return DemoSettings(
        prompt_length=recipe.prompt_length,
        max_new_tokens=recipe.max_new_tokens,
        top_k=recipe.top_k,
        num_drafts=recipe.num_drafts,
        max_nodes=recipe.max_nodes,
        order=recipe.order,
        seed=recipe.seed,
        alpha={name: best[name].alpha for name in ("p_best_ngram", "tree")},
        temperature={name: best[name].temperature for name in ("tree_0gram", "tree")},
        end_of_text=end_of_text,
        training=training,
        loops=loops or {},
    )


def _record_greedy(parts: Parts, recipe: Recipe, corpus: Corpus, watcher: Watcher) -> Recording:
    """Greedy outputs after the tuning prompts, with the heads at each position."""
    documents = parts.encode(corpus.tune)
    length, max_new_tokens = recipe.prompt_length, recipe.max_new_tokens
    prompts = draw_prompts(documents, recipe.tune_prompts, length, max_new_tokens, recipe.seed)
    outputs = []
    for prompt in prompts:
        result = decode(
            parts.model,
            prompt,
            NoDrafter(),
            max_new_tokens=max_new_tokens,
            stop_token_ids=[parts.end_of_text],
        )
        outputs.append(result.token_ids)
        watcher.advance()
    return record(parts.model, prompts, outputs, top_k=recipe.top_k)
