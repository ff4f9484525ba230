"""The quick evaluation: the demo model, tasks from library files, several LMs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lattice_bpd.decode.drafters.neural_scorer import NeuralScorer
from lattice_bpd.evaluate.demo.library_tasks import QUICK_TASKS, library_domain, library_passages
from lattice_bpd.evaluate.demo.library_text import Corpus
from lattice_bpd.evaluate.demo.model_folder import LM_FILE, TOKENIZER_FILE, DemoModel
from lattice_bpd.evaluate.demo.parts import train_recipe_lm
from lattice_bpd.evaluate.demo.recipe import QUICK
from lattice_bpd.evaluate.record.write import Prompt, RecordOptions
from lattice_bpd.evaluate.replay.count_trie import CountTrie
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.lm.training import SmoothingWarning
from lattice_bpd.watcher import Watcher

LMS_FOLDER = "lms"
_DOMAIN_TEXTS = 4000  # of a domain are enough for its LMs, and tokenized in a second
DOMAIN = "in-domain"  # names of LMs of a task's own domain begin with it


@dataclass
class Source:
    """The inputs of an evaluation.

    Attributes:
        model: target and heads.
        model_name: its folder.
        tokenizer: of the `tokenizers` library.
        tokenizer_file: its path.
        prompts: by task.
        lms: n-gram LMs by name, that of the main table first.
        lm_files: their paths.
        scorers: rescorers by name, that of the main table first.
        scorer_files: their folders.
        domain_lms: by task, LMs of its domain by name, for the tasks that have any.
        trie: raw counts.
        metrics: by task, the metric of its outputs.
        record: options of recording.
        human: by task, the token ids that follow each prompt in its file.
    """

    model: Any
    model_name: str
    tokenizer: Any
    tokenizer_file: str
    prompts: dict[str, list[Prompt]]
    lms: dict[str, NGramLM]
    lm_files: dict[str, str]
    record: RecordOptions
    scorers: dict[str, NeuralScorer] = field(default_factory=dict)
    scorer_files: dict[str, str] = field(default_factory=dict)
    domain_lms: dict[str, dict[str, NGramLM]] = field(default_factory=dict)
    trie: CountTrie | None = None
    metrics: dict[str, str] = field(default_factory=dict)
    human: dict[str, list[list[int]]] = field(default_factory=dict)


def make_quick_source(
    directory: Path,
    demo: DemoModel,
    corpus: Corpus,
    watcher: Watcher,
    *,
    prompts: int,
    tasks: Sequence[str] = QUICK_TASKS,
) -> Source:
    """Select prompts for each task, and train LMs of lower orders and of the tasks' domains.

    Args:
        directory: for the LMs.
        demo: the model.
        corpus: prompts are from its test part, LMs are trained on its training part.
        watcher: notified of the stage "lms".
        prompts: of each task.
        tasks: of LIBRARY_TASKS.

    Raises:
        OSError: the folder cannot be written.
    """
    settings, vocab_size = demo.settings, demo.model.vocab_size
    watcher.begin("lms")
    documents = demo.encode(corpus.train)
    lms, files = _orders(directory, demo, documents)
    general = NGramLM.train(documents, 1, vocab_size=vocab_size)
    domains = {
        task: _domain_lms(demo, library_domain(task, corpus.train), general) for task in tasks
    }
    for task, made in domains.items():
        for number, lm in enumerate(made.values()):
            lm.save(directory / LMS_FOLDER / f"domain-{task}-{number}.lm")
    trie = CountTrie(documents, vocab_size, settings.order)
    watcher.end()
    by_task = {
        task: library_passages(
            task, corpus.test, demo.tokenizer, count=prompts, length=settings.prompt_length,
            room=settings.max_new_tokens, seed=settings.seed,
        )
        for task in tasks
    }  # fmt: skip
    by_task = {task: passages for task, passages in by_task.items() if len(passages) > 1}
    return Source(
        demo.model, str(demo.directory), demo.tokenizer, str(demo.directory / TOKENIZER_FILE),
        {task: [prompt for prompt, _ in passages] for task, passages in by_task.items()},
        lms, files,
        RecordOptions(
            top_k=min(64, vocab_size), max_new_tokens=settings.max_new_tokens,
            stop_token_ids=(settings.end_of_text,), batch_size=16,
        ),
        domain_lms=domains, trie=trie, metrics=dict.fromkeys(by_task, "perplexity"),
        human={task: [text for _, text in passages] for task, passages in by_task.items()},
    )  # fmt: skip


def _orders(
    directory: Path, demo: DemoModel, documents: Sequence[Any]
) -> tuple[dict[str, NGramLM], dict[str, str]]:
    """The demo's LM, and LMs of lower orders (paper table 9)."""
    (directory / LMS_FOLDER).mkdir(parents=True, exist_ok=True)
    name = f"{demo.lm.order}-gram"
    lms, files = {name: demo.lm}, {name: str(demo.directory / LM_FILE)}
    for order in range(2, demo.lm.order):
        counts = (*QUICK.min_counts, *[QUICK.min_counts[-1]] * order)[:order]
        recipe = replace(QUICK, order=order, vocab_size=demo.model.vocab_size, min_counts=counts)
        lms[f"{order}-gram"], _ = train_recipe_lm(documents, recipe)
        path = directory / LMS_FOLDER / f"{order}-gram.lm"
        lms[f"{order}-gram"].save(path)
        files[f"{order}-gram"] = str(path)
    return lms, files


def _domain_lms(demo: DemoModel, texts: Sequence[str], general: NGramLM) -> dict[str, NGramLM]:
    """LMs of one domain (paper table 7 and appendix D); none where there is too little text.

    Args:
        demo: the model.
        texts: of the domain.
        general: unigrams of the general corpus.

    Returns:
        "in-domain": Witten-Bell smoothing, for which little text suffices. "in-domain Katz": as in
        the paper, unseen tokens cost 1000. "in-domain Katz + general unigrams": a static mixture
        with unigrams of the general corpus, its weight tuned on a tenth of the domain's texts.
    """
    order, vocab_size = demo.lm.order, demo.model.vocab_size
    some = texts[:: max(1, len(texts) // _DOMAIN_TEXTS)]
    rows = [ids for ids in demo.encode(some) if len(ids)]
    if sum(map(len, rows)) < 100 * order:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmoothingWarning)  # expected of so little text
        smooth = NGramLM.train(rows, order, vocab_size=vocab_size, smoothing="witten_bell")
        katz = NGramLM.train(rows, order, vocab_size=vocab_size)
        part = NGramLM.train(rows[len(rows) // 10 :], order, vocab_size=vocab_size)
    weights = NGramLM.tune_weights([part, general], rows[: len(rows) // 10] or rows)
    mixture = NGramLM.interpolate([katz, general], weights=weights)
    return {
        DOMAIN: smooth, f"{DOMAIN} Katz": katz, f"{DOMAIN} Katz + general unigrams": mixture,
    }  # fmt: skip
