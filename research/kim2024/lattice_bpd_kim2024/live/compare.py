"""Compares strategies on the same prompts: target calls, speed, equality with greedy decoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from math import inf
from typing import Any

import numpy as np

from lattice_bpd.build.bootstrap import Interval, bootstrap_ratio
from lattice_bpd.decode.certificate.noise import follow_text
from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.drafters.mixture import MixtureDrafter
from lattice_bpd.decode.loop.decode import DecodeResult, decode
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.decode.state.statistics import DecodeStats
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd_kim2024.blockwise import BlockwiseLM, to_drafting
from lattice_bpd_kim2024.replay.strategies import STANDARD_SETTINGS, Setting
from lattice_bpd_kim2024.statistics import count_looping


@dataclass(frozen=True)
class Difference:
    """An output that differs from greedy decoding's.

    Attributes:
        prompt: its number.
        position: of the first differing token of the output.
        margin: the most by which the target's own `generate`, made to write the output, prefers
            another token; infinite if the output ends too early or too late.
        bound: the largest margin that rounding explains, by the noise of the target's own calls.
    """

    prompt: int
    position: int
    margin: float
    bound: float = 0.0

    @property
    def is_tie(self) -> bool:
        """Whether rounding explains it."""
        return self.margin <= self.bound


@dataclass
class StrategyResult:
    """The outputs and statistics of one strategy.

    Attributes:
        setting: the strategy.
        stats: of each prompt; with several timed runs, those of the run of median time.
        outputs: decoded tokens of each prompt.
        differing: outputs that differ from greedy's although the setting's rule is exact.
    """

    setting: Setting
    stats: list[DecodeStats] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)
    differing: list[Difference] = field(default_factory=list)

    @property
    def is_exact(self) -> bool:
        """Whether the setting's rule guarantees greedy's output."""
        return self.setting.acceptance is None or self.setting.acceptance.name == "exact"

    @property
    def lossless(self) -> bool:
        """Whether the rule is lossless, and the output is greedy's if the rule guarantees that."""
        rule = self.setting.acceptance
        return (rule is None or rule.lossless) and not self.differing

    @property
    def near_ties(self) -> int:
        """Number of differing outputs that differ only where rounding decides."""
        return sum(difference.is_tie for difference in self.differing)

    @property
    def interval(self) -> Interval:
        """Block efficiency with its 95 % bootstrap interval over prompts."""
        tokens = [stats.tokens for stats in self.stats]
        return bootstrap_ratio(tokens, [stats.target_calls for stats in self.stats])

    def total(self, prompts: Sequence[int] | None = None) -> DecodeStats:
        """Statistics summed over the selected prompts, or over all."""
        merged = DecodeStats()
        for index in range(len(self.stats)) if prompts is None else prompts:
            merged.merge(self.stats[index])
        return merged


@dataclass
class Comparison:
    """All strategies on all prompts.

    Attributes:
        results: one for each setting; greedy is the first.
        looping: looping positions of greedy's output by prompt.
        timed: prompts that speeds are measured on; empty: all.
    """

    results: list[StrategyResult]
    looping: list[int]
    timed: list[int] = field(default_factory=list)

    @property
    def loop_share(self) -> float:
        """Share of greedy's output positions that loop."""
        tokens = self.results[0].total().tokens
        return sum(self.looping) / tokens if tokens else 0.0

    @property
    def loop_free(self) -> list[int]:
        """Prompts after which no position of greedy's output loops."""
        return [index for index, count in enumerate(self.looping) if count == 0]

    def gain(self, result: StrategyResult, prompts: Sequence[int] | None = None) -> float | None:
        """Block efficiency relative to the first BPD's, minus 1, on the chosen prompts, if any."""
        bpd = next(other for other in self.results if other.setting.strategy == "bpd")
        baseline = bpd.total(prompts).block_efficiency
        return result.total(prompts).block_efficiency / baseline - 1.0 if baseline else None

    def tokens_per_second(self, result: StrategyResult) -> float:
        """Decoded tokens / sum of the prompts' median times, on the timed prompts."""
        return result.total(self.timed or None).tokens_per_second

    def relative_speed(self, result: StrategyResult) -> float | None:
        """Tokens per second relative to greedy's; None for the oracle, which needs the output."""
        greedy = self.tokens_per_second(self.results[0])
        if result.setting.strategy == "oracle" or not greedy:
            return None
        return self.tokens_per_second(result) / greedy

    def to_json(self) -> list[dict[str, Any]]:
        """The "strategies" of results.json; null where a strategy has no such figure."""
        return [self._line(result) for result in self.results]

    def _line(self, result: StrategyResult) -> dict[str, Any]:
        total = result.total()
        return {
            "name": result.setting.name,
            "block_efficiency": total.block_efficiency,
            "interval": result.interval.to_json(),
            "gain_over_bpd": self.gain(result),
            "target_calls": total.target_calls,
            "tokens": total.tokens,
            "verified_tokens": total.verified_tokens,
            "tokens_per_second": self.tokens_per_second(result),
            "relative_speed": self.relative_speed(result),
            "draft_failures": total.draft_failures,
            "loop_free_gain": self.gain(result, self.loop_free),
            "acceptance": str(result.setting.acceptance or "exact"),
            "lossless": result.lossless,
            "relaxed_share": total.relaxed_share,
            "regret_per_token": total.regret_per_token,
            "near_ties": result.near_ties,
            "differences": [asdict(difference) for difference in result.differing],
            "stage_seconds": total.seconds,
        }


def compare_strategies(
    model: BlockwiseLM | DraftingModel,
    lm: NGramLM | None,
    prompts: Sequence[Sequence[int]],
    *,
    settings: Sequence[Setting] = STANDARD_SETTINGS,
    top_k: int = 16,
    num_drafts: int = 16,
    alpha: float = 0.5,
    options: Mapping[str, DraftConfig] | None = None,
    sources: Mapping[str, Any] | None = None,
    max_new_tokens: int = 64,
    stop_token_ids: Sequence[int] = (),
    rounds: int = 1,
    timed_prompts: int | None = None,
    seed: int = 0,
    on_prompt: Callable[[Setting], None] | None = None,
) -> Comparison:
    """Decode all prompts with all strategies.

    Args:
        model: target and heads; prompts of an encoder-decoder are its sources.
        lm: n-gram LM of the settings that use one; None if none does.
        prompts: token ids.
        settings: strategies; greedy first, since the others are compared with it.
        top_k: k.
        num_drafts: p.
        alpha: weight of the LM.
        options: by the name of a setting, what to use instead of top_k, num_drafts and alpha.
        sources: LMs and scorers by the names that settings use instead of the common LM.
        max_new_tokens: tokens to decode after each prompt.
        stop_token_ids: decoding ends after these.
        rounds: runs of each prompt by each strategy. In each round all strategies decode a prompt
            one after another in random order, so that other load affects all of them. The run of
            median time is reported; with an even number of rounds, the faster of the middle two.
            The oracle has one run, since its time is not meaningful.
        timed_prompts: number of prompts, the first ones, that have more than one run and on which
            speeds are measured; None: all.
        seed: of the order.
        on_prompt: called after each prompt of each strategy and round.

    Returns:
        Comparison.

    Raises:
        ValueError: the first setting is not greedy, a source is missing, rounds or timed_prompts
            is below 1, or what `decode` refuses.
    """
    if not settings or settings[0].strategy != "greedy":
        raise ValueError("compare_strategies: expected the greedy setting first")
    timed = len(prompts) if timed_prompts is None else min(timed_prompts, len(prompts))
    if rounds < 1 or (timed_prompts is not None and timed_prompts < 1):
        raise ValueError(
            f"compare_strategies: rounds is {rounds} and timed_prompts {timed_prompts}; expected 1 "
            "or more"
        )
    drafting = to_drafting(model)
    common = DraftConfig(top_k=top_k, num_drafts=num_drafts, alpha=alpha)
    runs = [
        _Runs(
            StrategyResult(setting),
            setting.source_of(lm, sources),
            (options or {}).get(setting.name, common),
        )
        for setting in settings
    ]
    rng = np.random.default_rng(seed)
    for count in [len(prompts)] + [timed] * (rounds - 1):
        for number in range(count):
            for run in _in_random_order(runs, rng, number):
                run.decode(
                    drafting,
                    number,
                    prompts[number],
                    runs[0].expected(number),
                    max_new_tokens=max_new_tokens,
                    stop_token_ids=stop_token_ids,
                )
                if on_prompt is not None:
                    on_prompt(run.result.setting)
    results = [run.finish() for run in runs]
    pairs = zip(prompts, results[0].outputs, strict=True)
    looping = [count_looping(prompt, output) for prompt, output in pairs]
    return Comparison(results, looping, list(range(timed)))


@dataclass
class _Runs:
    """The runs of one strategy.

    Attributes:
        result: filled by `finish`.
        source: LM or scorer.
        options: numbers of the strategy.
        runs: the runs of each prompt.
    """

    result: StrategyResult
    source: Any
    options: DraftConfig
    runs: list[list[DecodeResult]] = field(default_factory=list)
    _shared: Drafter | None = None

    def expected(self, number: int) -> list[int]:
        """The output of a prompt's first run; empty before that."""
        return self.runs[number][0].token_ids if number < len(self.runs) else []

    def decode(
        self,
        model: DraftingModel,
        number: int,
        prompt: Sequence[int],
        greedy: list[int],
        **options: Any,
    ) -> None:
        """Decode prompt `number` once more, and compare it with greedy's output."""
        setting = self.result.setting
        drafter = self._shared or setting.drafter(self.source, greedy, self.options)
        if isinstance(drafter, MixtureDrafter):
            self._shared = drafter  # it measures costs with all prompts
        result = decode(model, prompt, drafter, acceptance=setting.acceptance, **options)
        if number == len(self.runs):
            self.runs.append([])
        self.runs[number].append(result)
        differs = setting.strategy != "greedy" and result.token_ids != greedy
        seen = [difference.prompt for difference in self.result.differing]
        if differs and self.result.is_exact and number not in seen:
            self.result.differing.append(
                find_difference(model, number, prompt, greedy, result.token_ids)
            )

    def finish(self) -> StrategyResult:
        """The result, with each prompt's run of median time."""
        for results in self.runs:
            ordered = sorted(results, key=lambda result: result.stats.seconds["total"])
            median = ordered[(len(ordered) - 1) // 2]
            self.result.stats.append(median.stats)
            self.result.outputs.append(median.token_ids)
        return self.result


def _in_random_order(runs: Sequence[_Runs], rng: np.random.Generator, number: int) -> list[_Runs]:
    """The strategies that decode this prompt next; greedy first if its output is needed."""
    first = number == len(runs[0].runs)
    some = runs[1:] if first else [run for run in runs if run.result.setting.strategy != "oracle"]
    shuffled = [some[index] for index in rng.permutation(len(some)).tolist()]
    return [runs[0], *shuffled] if first else shuffled


def find_difference(
    model: BlockwiseLM | DraftingModel,
    number: int,
    prompt: Sequence[int],
    expected: Sequence[int],
    output: Sequence[int],
) -> Difference:
    """How an output of prompt `number` differs from greedy decoding's, and whether rounding did it.

    Args:
        model: the target.
        number: of the prompt.
        prompt: token ids.
        expected: (m,) greedy's token ids.
        output: the other's, not the same.
    """
    pairs = enumerate(zip_longest(expected, output))
    position = next(index for index, (a, b) in pairs if a != b)
    if position >= min(len(expected), len(output)):
        return Difference(number, position, inf)
    target = to_drafting(model).target
    begin = target.decoder_prompt  # of an encoder-decoder
    choices, noise = follow_text(
        target, prompt if begin is None else begin, output, source=begin and prompt,
        cpu_kernels=True,
    )  # fmt: skip
    return Difference(number, position, max(0.0, -min(choices.margins)), noise.margin_bound)
