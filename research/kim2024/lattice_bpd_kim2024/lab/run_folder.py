"""Evaluation of tasks into a run folder, with checks by live decoding.

DIR/record/TASK/     the record of each task
DIR/results.json     all results; research/kim2024/evaluate.md has the schema
DIR/*.csv, *.tex     its tables
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from lattice_bpd.decode.drafters.drafter import NoDrafter
from lattice_bpd.decode.drafters.neural_scorer import NeuralScorer
from lattice_bpd.decode.loop.decode import decode
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.verify.acceptance.rules import Exact, parse_acceptance
from lattice_bpd.watcher import Watcher
from lattice_bpd_kim2024.blockwise import to_drafting
from lattice_bpd_kim2024.demo.quick import Source
from lattice_bpd_kim2024.lab.lab import Lab, LabOptions, split_texts
from lattice_bpd_kim2024.lab.results import finish_results
from lattice_bpd_kim2024.live.acceptance import compare_rules
from lattice_bpd_kim2024.live.compare import find_difference
from lattice_bpd_kim2024.live.speed import SPEED_ROUNDS, measure_speed, speed_settings
from lattice_bpd_kim2024.record.files import RECORDS_FOLDER, Manifest, read_record
from lattice_bpd_kim2024.record.write import TextProgress, write_record
from lattice_bpd_kim2024.replay.positions import Rescorers
from lattice_bpd_kim2024.replay.replay import Recording
from lattice_bpd_kim2024.replay.scorers import Scorers
from lattice_bpd_kim2024.replay.strategies import STRATEGIES
from lattice_bpd_kim2024.replay.sweep import Point
from lattice_bpd_kim2024.statistics import loop_share
from lattice_bpd_kim2024.tasks import METRICS, Judge, measure_perplexity


def check_live(
    model: Any,
    recording: Recording,
    points: Sequence[Point],
    lms: Mapping[str, NGramLM],
    rescorers: Rescorers,
    on_text: Callable[[], None],
    *,
    scorers: Scorers | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Decode all texts of a recording with all points.

    Args:
        model: the recorded BlockwiseLM or DraftingModel.
        recording: texts to decode.
        points: strategies with their options.
        lms: by the names that points use.
        rescorers: what strategies use besides LMs and scorers.
        on_text: called after each text of each point.
        scorers: by the strategies and names that points use.
        options: max_new_tokens and stop_token_ids of the record.

    Returns:
        For each point {strategy, texts: decoded prompts, lossless: those whose output equals greedy
        decoding, same_calls: those with as many target calls as in the replay, tied: those that
        differ only where rounding decides, see `Difference`, holds: whether all texts are lossless
        or tied}.
    """
    model = to_drafting(model)
    greedy = [
        decode(model, text.model_input, NoDrafter(), **options).token_ids
        for text in recording.texts
    ]
    checks = []
    for point in points:
        used = point.rescorers(rescorers, lms, scorers or {})
        replayed = recording.replay(point.strategy, used, point.options)
        lossless = same_calls = tied = 0
        rows = zip(recording.texts, greedy, replayed.calls, strict=True)
        for number, (text, wanted, calls) in enumerate(rows):
            drafter = point.strategy.make_drafter(used, wanted, point.options)
            output = decode(model, text.model_input, drafter, **options)
            same_calls += bool(output.stats.target_calls == calls)
            if output.token_ids == wanted:
                lossless += 1
            else:
                pair = wanted, output.token_ids
                tied += find_difference(model, number, text.model_input, *pair).is_tie
            on_text()
        texts = len(recording.texts)
        checks.append(
            {
                "strategy": point.strategy.name, "texts": texts, "lossless": lossless,
                "same_calls": same_calls, "tied": tied, "holds": lossless + tied == texts,
            }
        )  # fmt: skip
    return checks


QUICK_ALPHAS = (0.1, 0.3, 0.5, 1.0, 2.0)


def evaluate_source(
    directory: Path,
    source: Source,
    options: LabOptions,
    watcher: Watcher,
    *,
    live_texts: int = 2,
) -> dict[str, Any]:
    """Record all tasks, replay all strategies, decode some prompts live.

    Args:
        directory: the run folder; existing records are used.
        source: model, prompts, LMs.
        options: what to replay.
        watcher: notified of the stages.
        live_texts: prompts of each task that are decoded live.

    Returns:
        results.json, not written yet.

    Raises:
        ValueError: from recording and replaying.
        OSError: the folder cannot be written.
    """
    tasks: dict[str, dict[str, Any]] = {}
    for task, prompts in source.prompts.items():
        folder = directory / RECORDS_FOLDER / task
        watcher.begin(f"{task}: recording", len(prompts))
        manifest = write_record(
            folder, source.model, prompts, source.record, task=task,
            model_name=source.model_name, tokenizer=source.tokenizer_file,
            on_text=TextProgress(watcher),
        )  # fmt: skip
        watcher.end()
        run = _TaskRun(task, folder, manifest, source, options, watcher)
        tasks[task] = run.results(live_texts)
        copied = ("model_fingerprint", "num_slots", "top_k", "max_new_tokens")
        tasks[task]["record"] = {
            "folder": folder.relative_to(directory).as_posix(),
            **{name: getattr(manifest, name) for name in copied},
            "bytes_per_step": round(manifest.bytes_per_step, 1),
        }
    return finish_results(
        tasks,
        _describe_lms(source.lms, source.lm_files),
        model=source.model_name,
        scorers=_describe_scorers(source.scorers, source.scorer_files),
    )


def _describe_lms(lms: Mapping[str, NGramLM], files: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: {"file": files.get(name), "order": lm.order, "num_ngrams": lm.num_ngrams}
        for name, lm in lms.items()
    }


def _describe_scorers(
    scorers: Mapping[str, NeuralScorer], files: Mapping[str, str]
) -> dict[str, Any]:
    return {
        name: {"file": files.get(name), "num_parameters": scorer.reader.model.base.num_parameters()}
        for name, scorer in scorers.items()
    }


class _TaskRun:
    """The stages of evaluating one recorded task."""

    def __init__(
        self, task: str, folder: Path, manifest: Manifest, source: Source, options: LabOptions,
        watcher: Watcher,
    ) -> None:  # fmt: skip
        self._task, self._source, self._options, self._watcher = task, source, options, watcher
        self._recording = recording = Recording(read_record(folder).texts)
        self._domain_lms = source.domain_lms.get(task, {})
        self._domain_scorers = source.domain_scorers.get(task, {})
        self._lms = {**source.lms, **self._domain_lms}
        self._neural = {**source.scorers, **self._domain_scorers}
        self._rescorers = Rescorers()
        self._reported = split_texts(len(recording.texts), options.held_out, options.seed)[1]
        self._decoding: dict[str, Any] = {
            "max_new_tokens": manifest.max_new_tokens,
            "stop_token_ids": manifest.stop_token_ids,
        }
        self._in_stage = False

    def results(self, live_texts: int) -> dict[str, Any]:
        """A task of results.json, without its record."""
        source, options, recording = self._source, self._options, self._recording
        lab = Lab(
            self._lms, self._neural, self._rescorers, options, self._begin, self._watcher.advance
        )
        self._recording = recording = lab.read(recording)
        results = lab.evaluate(recording)
        lm_files = source.domain_lm_files.get(self._task, {})
        scorer_files = source.domain_scorer_files.get(self._task, {})
        results["domain_lms"] = _describe_lms(self._domain_lms, lm_files)
        results["domain_scorers"] = _describe_scorers(self._domain_scorers, scorer_files)
        tuned = {name: DraftConfig(**numbers) for name, numbers in results["tuned"].items()}
        if live_texts:
            results["live"] = self._check_live(lab, results["strategies"], tuned, live_texts)
        if options.rules:
            self._begin("acceptance rules", 0)
            results["acceptance"] = self._compare_rules(tuned)
        if options.speed_texts:
            timed = self._reported[: options.speed_texts]
            settings = speed_settings(bool(self._lms), bool(self._neural) and "neural" in tuned)
            self._begin("timing live decoding", len(timed) * len(settings) * SPEED_ROUNDS)
            results["speed"] = measure_speed(
                source.model, next(iter(self._lms.values()), None),
                [recording.texts[number].model_input for number in timed], tuned,
                scorer=next(iter(self._neural.values()), None),
                **self._decoding, on_prompt=self._watcher.advance,
            )  # fmt: skip
        if self._in_stage:
            self._watcher.end()
        if self._task in source.human:
            texts = [recording.texts[number] for number in self._reported]
            human = [source.human[self._task][number] for number in self._reported]
            results["human_loop_share"] = loop_share(
                [text.prompt.tolist() for text in texts],
                [ids[: len(text.output)] for text, ids in zip(texts, human, strict=True)],
            )
        results["performance"] = self._performance()
        return results

    def _begin(self, stage: str, total: int) -> None:
        if self._in_stage:
            self._watcher.end()
        self._in_stage = True
        self._watcher.begin(f"{self._task}: {stage}", total)

    def _check_live(
        self, lab: Lab, lines: Sequence[dict[str, Any]], tuned: Mapping[str, DraftConfig],
        count: int,
    ) -> list[dict[str, Any]]:  # fmt: skip
        few = self._recording.select(range(min(count, len(self._recording.texts))))
        points = [
            Point(
                STRATEGIES[line["name"]], tuned[line["name"]],
                line["options"].get("lm", ""), line["options"].get("scorer", ""),
            )
            for line in lines
        ]  # fmt: skip
        self._begin("decoding live", len(points) * len(few.texts))
        return check_live(
            self._source.model, few, points, self._lms, self._rescorers, self._watcher.advance,
            scorers=lab.scorers, **self._decoding,
        )  # fmt: skip

    def _compare_rules(self, tuned: Mapping[str, DraftConfig]) -> list[dict[str, Any]]:
        """The acceptance rules on reported texts, with the drafts of the tuned tree."""
        source, numbers = self._source, self._reported[: self._options.rule_texts]
        texts = [self._recording.texts[number] for number in numbers]
        rules = [parse_acceptance(rule) for rule in self._options.rules]
        rules = [Exact(), *(rule for rule in rules if rule.name != Exact.name)]
        name = next(name for name in ("tree", "tree_0gram", "bpd") if name in tuned)
        strategy = STRATEGIES[name]
        used = Rescorers(next(iter(self._lms.values())) if strategy.uses_lm else None)
        metric = METRICS.get(source.metrics.get(self._task, ""))

        def judge_tokens(outputs: Sequence[Sequence[int]]) -> float:
            decoded = [source.tokenizer.decode(list(output)) for output in outputs]
            return cast("Judge", metric)(decoded, [text.references for text in texts])

        is_judged = metric is not None and all(text.references for text in texts)
        results = compare_rules(
            source.model, [text.model_input for text in texts], rules,
            lambda: strategy.make_drafter(used, (), tuned[name]),
            **self._decoding, judge=judge_tokens if is_judged else None,
        )  # fmt: skip
        return [result.to_json() for result in results]

    def _performance(self) -> dict[str, Any] | None:
        """Quality of the greedy outputs (table 1); None without a metric or references."""
        metric, tokenizer = self._source.metrics.get(self._task), self._source.tokenizer
        if metric is None:
            return None
        texts, judge = self._recording.texts, METRICS[metric]
        if judge is None:
            if texts[0].source is not None:  # perplexity is of texts that a causal LM reads
                return None
            whole = [
                text.prompt.tolist()
                + (tokenizer.encode(f" {text.references[0]}").ids if text.references else [])
                for text in texts
            ]
            value = measure_perplexity(to_drafting(self._source.model), whole)
            return {"metric": metric, "value": value, "texts": len(texts)}
        judged = [text for text in texts if text.references]
        if not judged:
            return None
        outputs = [tokenizer.decode(text.output.tolist()) for text in judged]
        value = judge(outputs, [text.references for text in judged])
        return {"metric": metric, "value": value, "texts": len(judged)}


def quick_options(options: LabOptions, top_k: int) -> LabOptions:
    """Fewer texts and weights, and a k that the record has, for a short run."""
    plain = replace(options.options, top_k=min(options.options.top_k, top_k))
    return replace(
        options,
        options=plain,
        held_out=8,
        speed_texts=2,
        alphas=QUICK_ALPHAS,
        scorer_alphas=QUICK_ALPHAS[2:5],
    )
