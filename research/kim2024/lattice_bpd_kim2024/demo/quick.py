"""The quick evaluation: the demo model, tasks from library files, several LMs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lattice_bpd.decode.drafters.neural_scorer import NeuralScorer
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.lm.training import SmoothingWarning
from lattice_bpd.models.checkpoint import load_target
from lattice_bpd.models.lm_call import find_max_positions
from lattice_bpd.watcher import Watcher
from lattice_bpd_kim2024.demo.library_tasks import QUICK_TASKS, library_domain, library_passages
from lattice_bpd_kim2024.demo.library_text import Corpus
from lattice_bpd_kim2024.demo.model_folder import LM_FILE, TOKENIZER_FILE, DemoModel
from lattice_bpd_kim2024.demo.recipe import QUICK
from lattice_bpd_kim2024.demo.training import train_recipe_lm
from lattice_bpd_kim2024.heads.options import TrainOptions
from lattice_bpd_kim2024.record.write import Prompt, RecordOptions
from lattice_bpd_kim2024.rescorer import train_rescorer

LMS_FOLDER = "lms"
_DOMAIN_TEXTS = 4000  # of a domain are enough for its LMs, and tokenized in a second
DOMAIN = "in-domain"  # names of LMs and rescorers of a task's own domain begin with it
FINE_TUNING = TrainOptions(
    steps=40, batch_size=8, sequence_length=128, base_rate=0.5, warmup=4, precision="fp32"
)  # fmt: skip
"""Of the demo's rescorer on the text of a domain: seconds for each."""


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
        domain_lm_files: their paths.
        domain_scorers: by task, rescorers of its domain by name, likewise.
        domain_scorer_files: their folders.
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
    domain_lm_files: dict[str, dict[str, str]] = field(default_factory=dict)
    domain_scorers: dict[str, dict[str, NeuralScorer]] = field(default_factory=dict)
    domain_scorer_files: dict[str, dict[str, str]] = field(default_factory=dict)
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
    rescorer: Path | None = None,
) -> Source:
    """Select prompts for each task, and train LMs of lower orders and of the tasks' domains.

    Args:
        directory: for the LMs and rescorers.
        demo: the model.
        corpus: prompts are from its test part, LMs are trained on its training part.
        watcher: notified of the stage "lms".
        prompts: of each task.
        tasks: of LIBRARY_TASKS.
        rescorer: folder of one to fine-tune on each domain; None: no neural LMs of domains.

    Raises:
        OSError: the folder cannot be written.
    """
    settings, vocab_size = demo.settings, demo.model.vocab_size
    watcher.begin("lms")
    documents = demo.encode(corpus.train)
    lms, files = _orders(directory, demo, documents)
    general = NGramLM.train(documents, 1, vocab_size=vocab_size)
    rows = {task: _domain_rows(demo, library_domain(task, corpus.train)) for task in tasks}
    domains = {task: _domain_lms(demo, rows[task], general) for task in tasks if rows[task]}
    lm_files: dict[str, dict[str, str]] = {}
    for task, made in domains.items():
        for number, (name, lm) in enumerate(made.items()):
            path = directory / LMS_FOLDER / f"domain-{task}-{number}.lm"
            lm.save(path)
            lm_files.setdefault(task, {})[name] = str(path)
    scorers: dict[str, dict[str, NeuralScorer]] = {}
    scorer_files: dict[str, dict[str, str]] = {}
    if rescorer is not None:
        for task in domains:
            path = directory / LMS_FOLDER / f"domain-{task}-rescorer"
            scorers[task] = {DOMAIN: _fine_tune(rescorer, rows[task], path, demo.model.device)}
            scorer_files[task] = {DOMAIN: str(path)}
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
        domain_lms=domains, domain_lm_files=lm_files, domain_scorers=scorers,
        domain_scorer_files=scorer_files, metrics=dict.fromkeys(by_task, "perplexity"),
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


def _domain_rows(demo: DemoModel, texts: Sequence[str]) -> list[Any]:
    """Token ids of the texts of a domain; none where there is too little text."""
    some = texts[:: max(1, len(texts) // _DOMAIN_TEXTS)]
    rows = [ids for ids in demo.encode(some) if len(ids)]
    return rows if sum(map(len, rows)) >= 100 * demo.lm.order else []


def _domain_lms(demo: DemoModel, rows: Sequence[Any], general: NGramLM) -> dict[str, NGramLM]:
    """LMs of one domain (paper table 7 and appendix D).

    Args:
        demo: the model.
        rows: token ids of the domain's texts.
        general: unigrams of the general corpus.

    Returns:
        "in-domain": Witten-Bell smoothing, for which little text suffices. "in-domain Katz": as in
        the paper, unseen tokens cost 1000. "in-domain Katz + general unigrams": a static mixture
        with unigrams of the general corpus, its weight tuned on a tenth of the domain's texts.
    """
    order, vocab_size = demo.lm.order, demo.model.vocab_size
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


def _fine_tune(folder: Path, rows: Sequence[Any], output: Path, device: Any) -> NeuralScorer:
    """The rescorer of a folder, trained further on a domain (paper appendix D)."""
    model = load_target(folder, dtype=torch.float32).to(device)
    length = min(FINE_TUNING.sequence_length, find_max_positions(model.config) or 1 << 30)
    train_rescorer(model, np.concatenate(rows), replace(FINE_TUNING, sequence_length=length))
    model.save_pretrained(output)
    return NeuralScorer(model)
