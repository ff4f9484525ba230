"""Strategies x prompts: the same texts decoded in several ways, compared with greedy decoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any

import torch

from lattice_bpd import NGramLM
from lattice_bpd.decode import DecodeStats, decode
from lattice_bpd.evaluate.loops import count_looping
from lattice_bpd.evaluate.settings import STANDARD_SETTINGS, DraftOptions, Setting
from lattice_bpd.models import BlockwiseLM


@dataclass(frozen=True)
class Difference:
    """Where an output leaves greedy's.

    Attributes:
        prompt: its number.
        position: of the first differing token of the output.
        margin: by how much greedy's logit leads the next there. Calls of different shapes round
            differently; a margin near the rounding error is a tie, a larger one a bug.
    """

    prompt: int
    position: int
    margin: float


@dataclass
class StrategyResult:
    """What one strategy did on all prompts.

    Attributes:
        setting: which strategy.
        stats: of each prompt.
        outputs: decoded tokens of each prompt.
        differing: outputs that are not greedy's, though the setting's rule promises that.
    """

    setting: Setting
    stats: list[DecodeStats] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)
    differing: list[Difference] = field(default_factory=list)

    @property
    def is_exact(self) -> bool:
        """Whether the setting's rule promises greedy's output."""
        return self.setting.acceptance is None or self.setting.acceptance.name == "exact"

    @property
    def lossless(self) -> bool:
        """Whether the rule is lossless, and greedy's output came where it promises that."""
        rule = self.setting.acceptance
        return (rule is None or rule.lossless) and not self.differing

    def total(self, prompts: Sequence[int] | None = None) -> DecodeStats:
        """Statistics added up over the chosen prompts, or over all."""
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
    """

    results: list[StrategyResult]
    looping: list[int]

    @property
    def loop_share(self) -> float:
        """Share of greedy's output positions that loop."""
        tokens = self.results[0].total().tokens
        return sum(self.looping) / tokens if tokens else 0.0

    @property
    def loop_free(self) -> list[int]:
        """Prompts behind which no position of greedy's output loops."""
        return [index for index, count in enumerate(self.looping) if count == 0]

    def gain(self, result: StrategyResult, prompts: Sequence[int] | None = None) -> float | None:
        """Block efficiency relative to BPD's, minus 1, on the chosen prompts; None without any."""
        bpd = next(other for other in self.results if other.setting.name == "bpd")
        baseline = bpd.total(prompts).block_efficiency
        return result.total(prompts).block_efficiency / baseline - 1.0 if baseline else None

    def to_json(self) -> list[dict[str, Any]]:
        """The "strategies" of results.json; null stands for what a strategy does not have."""
        return [self._line(result) for result in self.results]

    def _line(self, result: StrategyResult) -> dict[str, Any]:
        total = result.total()
        return {
            "name": result.setting.name,
            "block_efficiency": total.block_efficiency,
            "gain_over_bpd": self.gain(result),
            "target_calls": total.target_calls,
            "tokens": total.tokens,
            "verified_tokens": total.verified_tokens,
            "tokens_per_second": total.tokens_per_second,
            "scorer_failures": total.scorer_failures,
            "draft_failures": total.draft_failures,
            "repeat_share": total.repeat_share if total.neighbours else None,
            "loop_free_gain": self.gain(result, self.loop_free),
            "acceptance": str(result.setting.acceptance or "exact"),
            "lossless": result.lossless,
            "relaxed_share": total.relaxed_share,
            "regret_per_token": total.regret_per_token,
            "differences": [asdict(difference) for difference in result.differing],
            "stage_seconds": total.seconds,
        }


def compare_strategies(
    model: BlockwiseLM,
    lm: NGramLM,
    prompts: Sequence[Sequence[int]],
    *,
    settings: Sequence[Setting] = STANDARD_SETTINGS,
    top_k: int = 16,
    num_drafts: int = 16,
    alpha: float = 0.5,
    options: Mapping[str, DraftOptions] | None = None,
    sources: Mapping[str, Any] | None = None,
    max_new_tokens: int = 64,
    stop_token_ids: Sequence[int] = (),
    on_prompt: Callable[[Setting], None] | None = None,
) -> Comparison:
    """Decode all prompts with all strategies.

    Args:
        model: target and heads.
        lm: n-gram LM.
        prompts: token ids.
        settings: strategies; greedy first, since the others are compared with it.
        top_k: k.
        num_drafts: p.
        alpha: weight of the LM.
        options: by the name of a setting, what to use instead of top_k, num_drafts and alpha.
        sources: LMs and scorers by the names that settings use instead of the common LM.
        max_new_tokens: tokens to decode behind each prompt.
        stop_token_ids: decoding ends behind these.
        on_prompt: called after each prompt of each strategy.

    Returns:
        Comparison.

    Raises:
        ValueError: the first setting is not greedy, a source is missing, or what `decode` refuses.
    """
    if not settings or settings[0].strategy != "greedy":
        raise ValueError("compare_strategies: expected the greedy setting first")
    results = [StrategyResult(setting) for setting in settings]
    common = DraftOptions(top_k=top_k, num_drafts=num_drafts, alpha=alpha)
    for result in results:
        chosen = (options or {}).get(result.setting.name, common)
        source = result.setting.source_of(lm, sources)
        for number, prompt in enumerate(prompts):
            known = results[0].outputs[number] if result is not results[0] else []
            drafter = result.setting.drafter(source, known, chosen)
            found = decode(
                model,
                prompt,
                drafter,
                max_new_tokens=max_new_tokens,
                stop_token_ids=stop_token_ids,
                acceptance=result.setting.acceptance,
            )
            result.stats.append(found.stats)
            result.outputs.append(found.token_ids)
            if result is not results[0] and result.is_exact and found.token_ids != known:
                result.differing.append(_difference(model, number, prompt, known, found.token_ids))
            if on_prompt is not None:
                on_prompt(result.setting)
    pairs = zip(prompts, results[0].outputs, strict=True)
    return Comparison(results, [count_looping(prompt, output) for prompt, output in pairs])


@torch.inference_mode()
def _difference(
    model: BlockwiseLM, number: int, prompt: Sequence[int], known: list[int], found: list[int]
) -> Difference:
    """The first place where two outputs differ, and greedy's margin there."""
    pairs = enumerate(zip_longest(known, found))
    position = next(index for index, (a, b) in pairs if a != b)
    tokens = torch.tensor([[*prompt, *known[:position]]], device=model.device)
    best = model(tokens, logit_positions=1).logits[0, -1].topk(2).values
    return Difference(number, position, float(best[0] - best[1]))
