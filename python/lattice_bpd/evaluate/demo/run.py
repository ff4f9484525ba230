"""Decodes held-out prompts with a demo model by every strategy of the demo's table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lattice_bpd.watcher import Watcher
from lattice_bpd_kim2024.demo.library_text import draw_passages
from lattice_bpd_kim2024.demo.model_folder import DemoModel
from lattice_bpd_kim2024.live.call_tokens import CallTokens, split_by_call
from lattice_bpd_kim2024.live.compare import Comparison, StrategyResult, compare_strategies
from lattice_bpd_kim2024.live.greedy_check import check_greedy
from lattice_bpd_kim2024.live.repairs import Repair, find_repairs
from lattice_bpd_kim2024.replay.strategies import DEMO_SETTINGS
from lattice_bpd_kim2024.statistics import loop_share

REPLAYED = "tree"  # the strategy whose calls are shown


@dataclass(frozen=True)
class DemoSize:
    """Numbers of prompts and runs of the demo.

    Attributes:
        prompts: held-out prompts.
        timed_prompts: those of them that speeds are measured on.
        rounds: runs of these, see `compare_strategies`; odd, so that there is a middle one.
    """

    prompts: int = 8
    timed_prompts: int = 2
    rounds: int = 3

    def runs(self) -> int:
        """Decoded prompts, all strategies added up."""
        more = (self.rounds - 1) * min(self.timed_prompts, self.prompts)
        return self.prompts * len(DEMO_SETTINGS) + more * (len(DEMO_SETTINGS) - 1)  # no oracle


FULL_SIZE = DemoSize()
SMOKE_SIZE = DemoSize(prompts=4, timed_prompts=4, rounds=1)


@dataclass
class DemoRun:
    """The results of the demo.

    Attributes:
        demo: the model.
        size: numbers of prompts and runs.
        prompts: token ids of each prompt.
        continuations: the human text that follows each prompt, as long as greedy's output.
        comparison: all strategies; differences of "greedy" are from the target's own `generate`.
        seconds: wall time of each stage.
    """

    demo: DemoModel
    size: DemoSize
    prompts: list[list[int]]
    continuations: list[list[int]]
    comparison: Comparison
    seconds: dict[str, float]

    @property
    def greedy_equals_generate(self) -> bool:
        """Whether greedy's outputs are those of the target's own `generate`."""
        return not self.comparison.results[0].differing

    @property
    def human_loop_share(self) -> float:
        """Share of positions that loop in the human text."""
        return loop_share(self.prompts, self.continuations)

    def result(self, name: str) -> StrategyResult:
        """The results of the setting `name`."""
        return next(result for result in self.comparison.results if result.setting.name == name)

    def example(self) -> tuple[int, list[CallTokens]]:
        """A prompt whose output has no loop, with the tokens of each call for it.

        Of those prompts the one with the median of tokens per call; of all if every output loops.
        """
        result = self.result(REPLAYED)
        chosen = self.comparison.loop_free or list(range(len(self.prompts)))
        chosen = sorted(chosen, key=lambda number: result.stats[number].block_efficiency)
        number = chosen[(len(chosen) - 1) // 2]
        return number, split_by_call(result.outputs[number], result.stats[number].accept_lengths)

    def repairs(self) -> list[Repair]:
        """Two drafts before and after rescoring, from outputs without loops."""
        outputs, loop_free = self.comparison.results[0].outputs, self.comparison.loop_free
        options = self.demo.settings.options("ngram_1best")
        return find_repairs(
            self.demo.model,
            self.demo.lm,
            [self.prompts[number] for number in loop_free],
            [outputs[number] for number in loop_free],
            top_k=options.top_k,
            alpha=options.alpha,
        )

    def to_json(self) -> dict[str, Any]:
        """The figures of results.json; docs/evaluate.md has the schema."""
        settings, comparison = self.demo.settings, self.comparison
        return {
            "strategies": comparison.to_json(),
            "options": {
                setting.name: replace(
                    settings.options(setting.name), strategy=setting.strategy
                ).options
                for setting in DEMO_SETTINGS
            },
            "alpha": settings.alpha["p_best_ngram"],
            "top_k": settings.top_k,
            "num_drafts": settings.num_drafts,
            "max_nodes": settings.max_nodes,
            "order": settings.order,
            "num_heads": self.demo.model.num_heads,
            "prompts": len(self.prompts),
            "prompt_length": settings.prompt_length,
            "max_new_tokens": settings.max_new_tokens,
            "timed_prompts": len(comparison.timed),
            "rounds": self.size.rounds,
            "device": str(self.demo.model.device),
            "threads": torch.get_num_threads(),
            "loop_free_prompts": len(comparison.loop_free),
            "loop_share": comparison.loop_share,
            "human_loop_share": self.human_loop_share,
            "greedy_equals_generate": self.greedy_equals_generate,
            "training": settings.training,
            "seconds": self.seconds,
        }


def run_demo(demo: DemoModel, texts: Sequence[str], size: DemoSize, watcher: Watcher) -> DemoRun:
    """Decode prompts from held-out texts with every strategy of DEMO_SETTINGS.

    Args:
        demo: the model.
        texts: files that it was not trained on.
        size: numbers of prompts and runs.
        watcher: notified of the stages "prompts", "decode" and "generate".

    Raises:
        ValueError: the texts are shorter than a prompt with its continuation.
    """
    settings, seconds = demo.settings, dict[str, float]()
    start = time.perf_counter()
    watcher.begin("prompts")
    passages = draw_passages(
        demo.encode(texts),
        size.prompts,
        settings.prompt_length,
        settings.max_new_tokens,
        settings.seed,
    )
    prompts = [prompt for prompt, _ in passages]
    watcher.end()
    start = _lap(seconds, "prompts", start)
    common: dict[str, Any] = {
        "max_new_tokens": settings.max_new_tokens,
        "stop_token_ids": [settings.end_of_text],
    }
    watcher.begin("decode", replace(size, prompts=len(prompts)).runs())
    comparison = compare_strategies(
        demo.model,
        demo.lm,
        prompts,
        settings=DEMO_SETTINGS,
        options={setting.name: settings.options(setting.name) for setting in DEMO_SETTINGS},
        rounds=size.rounds,
        timed_prompts=size.timed_prompts,
        seed=settings.seed,
        on_prompt=lambda setting: watcher.advance(note=setting.name),
        **common,
    )
    watcher.end()
    start = _lap(seconds, "decode", start)
    watcher.begin("generate", len(prompts))
    greedy = comparison.results[0]
    differing = check_greedy(
        demo.model, prompts, greedy.outputs, on_prompt=watcher.advance, **common
    )
    comparison.results[0] = replace(greedy, differing=differing)
    watcher.end()
    _lap(seconds, "generate", start)
    pairs = zip(passages, greedy.outputs, strict=True)
    continuations = [text[: len(output)] for (_, text), output in pairs]
    return DemoRun(demo, size, prompts, continuations, comparison, seconds)


def _lap(seconds: dict[str, float], stage: str, start: float) -> float:
    now = time.perf_counter()
    seconds[stage] = now - start
    return now
