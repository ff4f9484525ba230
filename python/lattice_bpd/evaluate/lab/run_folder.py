"""A run folder: records, results and tables of one evaluation, complete in itself.

DIR/record/TASK/     the record of each task
DIR/results.json     everything; docs/evaluate.md has the schema
DIR/*.csv, *.tex     its tables
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.evaluate.demo.quick import Source
from lattice_bpd.evaluate.lab.lab import Lab
from lattice_bpd.evaluate.lab.live_check import check_live
from lattice_bpd.evaluate.lab.options import LabOptions, split_texts
from lattice_bpd.evaluate.lab.results import finish_results
from lattice_bpd.evaluate.live.rule_quality import compare_rules
from lattice_bpd.evaluate.live.speed import SPEED_ROUNDS, SPEED_SETTINGS, measure_speed
from lattice_bpd.evaluate.record.manifest import Manifest
from lattice_bpd.evaluate.record.read import RECORDS_FOLDER, read_record
from lattice_bpd.evaluate.record.texts import RecordedText
from lattice_bpd.evaluate.record.write import write_record
from lattice_bpd.evaluate.replay.positions import Rescorers
from lattice_bpd.evaluate.replay.replay import Recording
from lattice_bpd.evaluate.replay.settings import DraftOptions
from lattice_bpd.evaluate.replay.strategies import STRATEGIES
from lattice_bpd.evaluate.replay.sweep import Point
from lattice_bpd.evaluate.statistics.loops import loop_share
from lattice_bpd.evaluate.tasks.metrics import METRICS, Judge, measure_perplexity
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.verify.acceptance.parse import parse_acceptance
from lattice_bpd.verify.acceptance.rule import Exact
from lattice_bpd.watcher import Watcher

DOMAIN = "in-domain"  # name of the LM of a task's own domain


def evaluate_source(
    directory: Path,
    source: Source,
    options: LabOptions,
    watcher: Watcher,
    *,
    live_texts: int = 2,
    on_text: Callable[[str], Callable[[int, int], None]] | None = None,
) -> dict[str, Any]:
    """Record all tasks, replay all strategies, decode some prompts live.

    Args:
        directory: the run folder; records that are there already are used.
        source: model, prompts, LMs.
        options: what to replay.
        watcher: told of the stages.
        live_texts: prompts of each task that are decoded live.
        on_text: given a task, what `write_record` is to call.

    Returns:
        results.json, not written yet.

    Raises:
        ValueError: what recording and replaying refuse.
        OSError: the folder cannot be written.
    """
    rescorers = Rescorers(trie=source.trie)
    tasks: dict[str, dict[str, Any]] = {}
    for task, prompts in source.prompts.items():
        folder = directory / RECORDS_FOLDER / task
        watcher.begin(f"{task}: recording", len(prompts))
        manifest = write_record(
            folder, source.model, prompts, source.record, task=task,
            model_name=source.model_name, tokenizer=source.tokenizer_file,
            on_text=None if on_text is None else on_text(task),
        )  # fmt: skip
        watcher.end()
        recording = Recording(read_record(folder).texts)
        tasks[task] = _evaluate_task(
            task, recording, source, rescorers, options, watcher, live_texts
        )
        tasks[task]["record"] = _about_record(folder.relative_to(directory), manifest)
    lms = {
        name: {"file": source.lm_files.get(name), **_about_lm(lm)}
        for name, lm in source.lms.items()
    }
    return finish_results(tasks, lms, model=source.model_name)


def _evaluate_task(
    task: str, recording: Recording, source: Source, rescorers: Rescorers, options: LabOptions,
    watcher: Watcher, live_texts: int,
) -> dict[str, Any]:  # fmt: skip
    lms = dict(source.lms)
    if task in source.domain_lms:
        lms[DOMAIN] = source.domain_lms[task]
    running = False

    def begin(stage: str, total: int) -> None:
        nonlocal running
        if running:
            watcher.end()
        running = True
        watcher.begin(stage, total)

    results = Lab(lms, rescorers, options, begin, watcher.advance).evaluate(task, recording)
    if live_texts:
        few = recording.select(range(min(live_texts, len(recording.texts))))
        points = _tuned_points(results, next(iter(lms), ""))
        begin(f"{task}: decoding live", len(points) * len(few.texts))
        checks = check_live(
            source.model, few, points, lms, rescorers,
            max_new_tokens=source.record.max_new_tokens,
            stop_token_ids=source.record.stop_token_ids, on_text=watcher.advance,
        )  # fmt: skip
        results["live"] = [check.to_json() for check in checks]
    if options.rules:
        begin(f"{task}: acceptance rules", 0)
        results["acceptance"] = _compare_rules(task, results, recording, source, lms, options)
    reported = split_texts(len(recording.texts), options.held_out, options.seed)[1]
    if options.speed_texts:
        timed = [recording.texts[number].prompt.tolist() for number in reported]
        timed = timed[: options.speed_texts]
        runs = len(timed) * len(SPEED_SETTINGS) * SPEED_ROUNDS
        begin(f"{task}: timing live decoding", runs)
        results["speed"] = measure_speed(
            source.model, next(iter(lms.values()), None), timed,
            {name: DraftOptions(**tuned) for name, tuned in results["tuned"].items()},
            max_new_tokens=source.record.max_new_tokens,
            stop_token_ids=source.record.stop_token_ids, on_prompt=watcher.advance,
        )  # fmt: skip
    if running:
        watcher.end()
    if task in source.human:
        texts = [recording.texts[number] for number in reported]
        human = [source.human[task][number] for number in reported]
        results["human_loop_share"] = loop_share(
            [text.prompt.tolist() for text in texts],
            [ids[: len(text.output)] for text, ids in zip(texts, human, strict=True)],
        )
    results["performance"] = _performance(source, recording.texts, source.metrics.get(task))
    return results


def _tuned_points(results: dict[str, Any], lm: str) -> list[Point]:
    tuned = {name: DraftOptions(**options) for name, options in results["tuned"].items()}
    return [
        Point(STRATEGIES[name], options, lm if STRATEGIES[name].uses_lm else "")
        for name, options in tuned.items()
    ]


def _compare_rules(
    task: str, results: dict[str, Any], recording: Recording, source: Source,
    lms: dict[str, NGramLM], options: LabOptions,
) -> list[dict[str, Any]]:  # fmt: skip
    """The rules on reported texts, with the drafts of the tree at its tuned weights."""
    texts = [
        recording.texts[number]
        for number in split_texts(len(recording.texts), options.held_out, options.seed)[1]
    ][: options.rule_texts]
    rules = [parse_acceptance(rule) for rule in options.rules]
    rules = [Exact(), *(rule for rule in rules if rule.name != Exact.name)]
    name = next(name for name in ("tree", "tree_0gram", "bpd") if name in results["tuned"])
    strategy, tuned = STRATEGIES[name], DraftOptions(**results["tuned"][name])
    used = Rescorers(next(iter(lms.values())) if strategy.uses_lm else None)
    judge = METRICS.get(source.metrics.get(task, ""))

    def judge_tokens(outputs: Sequence[Sequence[int]]) -> float:
        words = [source.tokenizer.decode(list(output)) for output in outputs]
        return cast("Judge", judge)(words, [text.references for text in texts])

    judged = judge is not None and all(text.references for text in texts)
    found = compare_rules(
        source.model, [text.prompt.tolist() for text in texts], rules,
        lambda: strategy.make_drafter(used, (), tuned),
        max_new_tokens=source.record.max_new_tokens,
        stop_token_ids=source.record.stop_token_ids, judge=judge_tokens if judged else None,
    )  # fmt: skip
    return [result.to_json() for result in found]


def _performance(
    source: Source, texts: Sequence[RecordedText], metric: str | None
) -> dict[str, Any] | None:
    """How good greedy's texts are (table 1); None where there is nothing to judge them by."""
    if metric is None:
        return None
    judge = METRICS[metric]
    if judge is None:
        whole = [
            [*text.prompt.tolist(), *source.tokenizer.encode(f" {text.references[0]}").ids]
            if text.references
            else text.prompt.tolist()
            for text in texts
        ]
        value = measure_perplexity(DraftingModel(source.model), whole)
        return {"metric": metric, "value": value, "texts": len(texts)}
    judged = [text for text in texts if text.references]
    if not judged:
        return None
    outputs = [source.tokenizer.decode(text.output.tolist()) for text in judged]
    value = judge(outputs, [text.references for text in judged])
    return {"metric": metric, "value": value, "texts": len(judged)}


def _about_record(folder: Path, manifest: Manifest) -> dict[str, Any]:
    return {
        "folder": folder.as_posix(),
        "model_fingerprint": manifest.model_fingerprint,
        "num_slots": manifest.num_slots,
        "top_k": manifest.top_k,
        "max_new_tokens": manifest.max_new_tokens,
        "bytes_per_step": round(manifest.bytes_per_step, 1),
    }


def _about_lm(lm: NGramLM) -> dict[str, Any]:
    return {"order": lm.order, "num_ngrams": lm.num_ngrams}


def quick_options(options: LabOptions, top_k: int) -> LabOptions:
    """Fewer texts held out, a k that the record has and few timed texts, for a short run."""
    plain = replace(options.options, top_k=min(options.options.top_k, top_k))
    return replace(options, options=plain, held_out=8, speed_texts=2)
