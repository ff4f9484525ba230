"""The demo's model for transition_scores.py: its heads, prompts, and text that it generates."""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
from stories260k_parts import BATCH, Beginnings, Prepared, Recipe, train_lm

from lattice_bpd.cli.progress import ConsoleWatcher
from lattice_bpd_kim2024.demo.library_text import Corpus, draw_prompts, read_library_sources
from lattice_bpd_kim2024.demo.model_folder import DemoModel, load_demo_model
from lattice_bpd_kim2024.heads.self_generated import generate_texts

FULL_DEMO = Recipe(
    prompt_lengths=(96,), stories=8192, row_length=192, prompt_length=96, max_new_tokens=64,
    tune_prompts=48, test_prompts=96, alphas=(0.4, 0.8, 1.2), temperatures=(1.0, 1.5, 2.0, 2.5),
)  # fmt: skip
QUICK_DEMO = replace(FULL_DEMO, stories=2048, tune_prompts=16, test_prompts=24)
FILES = 200  # of the library that continuations begin in


def prepare_demo(
    args: argparse.Namespace, recipe: Recipe, watcher: ConsoleWatcher
) -> tuple[Prepared, DemoModel]:
    """The demo's model with its heads, text that it generates, and an n-gram LM of that text."""
    demo, corpus = load_demo_model(), read_library_sources(max_files=FILES)
    made_from = (recipe.stories, recipe.prompt_lengths, recipe.row_length, corpus.fingerprint)
    digest = hashlib.sha256(repr(made_from).encode()).hexdigest()[:8]
    work = args.work / f"demo-{digest}"
    work.mkdir(parents=True, exist_ok=True)
    rows = _cached_rows(work, demo, corpus, recipe, watcher)
    length, room = recipe.prompt_length, recipe.max_new_tokens
    tune, test = (
        draw_prompts(demo.encode(texts), count, length, room, seed=0)
        for texts, count in ((corpus.tune, recipe.tune_prompts), (corpus.test, recipe.test_prompts))
    )
    found = Beginnings([], tune, test, [])
    lm = train_lm(rows, recipe, vocab_size=demo.model.vocab_size)
    return Prepared(demo.model.base, found, work, rows, lm, demo.model), demo


def _cached_rows(
    work: Path, demo: DemoModel, corpus: Corpus, recipe: Recipe, watcher: ConsoleWatcher
) -> np.ndarray:
    """(N, row_length) greedy continuations of prompts from the training files."""
    path = work / "text.npy"
    if path.is_file():
        return np.load(path)
    length = recipe.prompt_lengths[0]
    prompts = draw_prompts(demo.encode(corpus.train), recipe.stories, length, 0, seed=1)
    watcher.begin("generating text to learn from", -(-len(prompts) // BATCH))
    rows = generate_texts(
        demo.model.base, prompts, recipe.row_length - length, batch_size=BATCH,
        on_batch=watcher.advance,
    )  # fmt: skip
    watcher.end()
    np.save(work / ".text.npy", rows)
    (work / ".text.npy").replace(path)
    return rows
