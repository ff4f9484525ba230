"""The quick evaluation: the demo's small model, tasks from its corpus, several LMs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lattice_bpd import NGramLM
from lattice_bpd.evaluate.corpus import Corpus
from lattice_bpd.evaluate.count_trie import CountTrie
from lattice_bpd.evaluate.library_tasks import LIBRARY_TASKS, library_domain, library_prompts
from lattice_bpd.evaluate.parts import (
    LM_FILE,
    TOKENIZER_FILE,
    Parts,
    load_parts,
    train_parts,
    train_recipe_lm,
)
from lattice_bpd.evaluate.recipe import Recipe
from lattice_bpd.evaluate.record.write import Prompt, RecordOptions
from lattice_bpd.train.watcher import Watcher

LMS_FOLDER = "lms"


@dataclass
class Source:
    """What an evaluation works on.

    Attributes:
        model: target and heads.
        model_name: its folder.
        tokenizer: of the `tokenizers` library.
        tokenizer_file: where it lies.
        prompts: by task.
        lms: n-gram LMs by name, that of the main table first.
        lm_files: where they lie.
        domain_lms: an LM of each task's own domain, where there is one.
        trie: raw counts.
        metrics: by task, how its outputs are judged.
        record: how to record.
    """

    model: Any
    model_name: str
    tokenizer: Any
    tokenizer_file: str
    prompts: dict[str, list[Prompt]]
    lms: dict[str, NGramLM]
    lm_files: dict[str, str]
    record: RecordOptions
    domain_lms: dict[str, NGramLM] = field(default_factory=dict)
    trie: CountTrie | None = None
    metrics: dict[str, str] = field(default_factory=dict)


def make_quick_source(
    directory: Path, recipe: Recipe, corpus: Corpus, watcher: Watcher, *, prompts: int
) -> Source:
    """Train what is not there yet, and draw prompts for each task.

    Args:
        directory: keeps the trained parts, for a second run too.
        recipe: the demo's.
        corpus: the demo's.
        watcher: told of the stages.
        prompts: of each task.

    Raises:
        FormatError: damaged parts.
        OSError: the folder cannot be written.
    """
    folder = directory / recipe.name
    parts = load_parts(folder, recipe, corpus) or train_parts(folder, recipe, corpus, watcher)
    watcher.begin("lms")
    lms, files = _orders(directory, folder, parts, recipe, corpus)
    domains = {
        task: lm
        for task in LIBRARY_TASKS
        if (lm := _domain_lm(parts, library_domain(task, corpus.train), recipe)) is not None
    }
    for task, lm in domains.items():
        lm.save(directory / LMS_FOLDER / f"domain-{task}.lm")
    trie = CountTrie(parts.encode(corpus.train), recipe.vocab_size, recipe.order)
    watcher.end()
    drawn = {
        task: library_prompts(
            task, corpus.test, parts.tokenizer,
            count=prompts, length=recipe.prompt_length, seed=recipe.seed,
        )
        for task in LIBRARY_TASKS
    }  # fmt: skip
    return Source(
        parts.model, str(folder), parts.tokenizer, str(folder / TOKENIZER_FILE),
        {task: found for task, found in drawn.items() if len(found) > 1}, lms, files,
        RecordOptions(
            top_k=min(64, recipe.vocab_size), max_new_tokens=recipe.max_new_tokens,
            stop_token_ids=(parts.end_of_text,), batch_size=16,
        ),
        domains, trie, dict.fromkeys(drawn, "perplexity"),
    )  # fmt: skip


def _orders(
    directory: Path, folder: Path, parts: Parts, recipe: Recipe, corpus: Corpus
) -> tuple[dict[str, NGramLM], dict[str, str]]:
    """The demo's LM, and the same of lower orders (paper table 9)."""
    (directory / LMS_FOLDER).mkdir(parents=True, exist_ok=True)
    name = f"{recipe.order}-gram"
    lms, files = {name: parts.lm}, {name: str(folder / LM_FILE)}
    documents = parts.encode(corpus.train)
    for order in range(2, recipe.order):
        smaller = replace(recipe, order=order, min_counts=recipe.min_counts[:order])
        lms[f"{order}-gram"], _ = train_recipe_lm(documents, smaller)
        path = directory / LMS_FOLDER / f"{order}-gram.lm"
        lms[f"{order}-gram"].save(path)
        files[f"{order}-gram"] = str(path)
    return lms, files


def _domain_lm(parts: Parts, texts: Sequence[str], recipe: Recipe) -> NGramLM | None:
    """An LM of one domain (paper table 7), smoothed so that little text suffices."""
    rows = [ids for ids in parts.encode(texts) if len(ids)]
    if sum(map(len, rows)) < 100 * recipe.order:
        return None
    return NGramLM.train(rows, recipe.order, vocab_size=recipe.vocab_size, smoothing="witten_bell")
