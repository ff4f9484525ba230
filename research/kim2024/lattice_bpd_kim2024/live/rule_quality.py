"""Output quality by acceptance rule: the same prompts decoded with each rule.

A replay cannot evaluate lossy rules, since their output is not greedy's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.loop.decode import decode
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.decode.state.statistics import DecodeStats
from lattice_bpd.verify.acceptance.rule import Acceptance
from lattice_bpd_kim2024.record.heads import read_output

JudgeTokens = Callable[[Sequence[Sequence[int]]], float]


@dataclass
class RuleResult:
    """The results of one rule on all prompts.

    Attributes:
        rule: the acceptance rule.
        outputs: decoded tokens of each prompt.
        stats: summed over prompts.
        same: number of outputs equal to those of the first rule.
        nats: -ln p per token of the outputs, under the target.
        quality: the task's metric; None without one.
    """

    rule: Acceptance
    outputs: list[list[int]] = field(default_factory=list)
    stats: DecodeStats = field(default_factory=DecodeStats)
    same: int = 0
    nats: float = 0.0
    quality: float | None = None

    def to_json(self) -> dict[str, Any]:
        """A line of "acceptance" in results.json."""
        return {
            "rule": str(self.rule),
            "lossless": self.rule.lossless,
            "guarantee": self.rule.guarantee,
            "texts": len(self.outputs),
            "tokens": self.stats.tokens,
            "target_calls": self.stats.target_calls,
            "block_efficiency": self.stats.block_efficiency,
            "relaxed_tokens": self.stats.relaxed_tokens,
            "relaxed_share": self.stats.relaxed_share,
            "regret": self.stats.regret,
            "regret_per_token": self.stats.regret_per_token,
            "nats_per_token": self.nats,
            "same_texts": self.same,
            "quality": self.quality,
            "tokens_per_second": self.stats.tokens_per_second,
        }


def compare_rules(
    model: Any,
    prompts: Sequence[Sequence[int]],
    rules: Sequence[Acceptance],
    make_drafter: Callable[[], Drafter],
    *,
    max_new_tokens: int = 64,
    stop_token_ids: Sequence[int] = (),
    judge: JudgeTokens | None = None,
    on_text: Callable[[], None] | None = None,
) -> list[RuleResult]:
    """Decode all prompts by each rule.

    Args:
        model: a BlockwiseLM or a DraftingModel.
        prompts: token ids of each.
        rules: the outputs of the others are compared with those of the first, usually Exact.
        make_drafter: returns a new drafter for each text.
        max_new_tokens: maximum number of tokens to decode after each prompt.
        stop_token_ids: decoding ends after these.
        judge: the task's metric of all outputs.
        on_text: called after each text of each rule.

    Returns:
        A RuleResult for each rule, in order.

    Raises:
        ValueError: no prompt or no rule, or what `decode` refuses.
    """
    if not prompts or not rules:
        raise ValueError(
            f"compare_rules: found {len(prompts)} prompts and {len(rules)} rules; expected one or "
            "more of each"
        )
    target = model if isinstance(model, DraftingModel) else DraftingModel(model)
    results = [RuleResult(rule) for rule in rules]
    for result in results:
        for prompt in prompts:
            output = decode(
                model, prompt, make_drafter(), max_new_tokens=max_new_tokens,
                stop_token_ids=stop_token_ids, acceptance=result.rule,
            )  # fmt: skip
            result.outputs.append(output.token_ids)
            result.stats.merge(output.stats)
            if on_text is not None:
                on_text()
        pairs = zip(result.outputs, results[0].outputs, strict=True)
        result.same = sum(ours == first for ours, first in pairs)
        nats = sum(map(_nats, [target] * len(prompts), prompts, result.outputs))
        result.nats = nats / result.stats.tokens
        result.quality = None if judge is None else judge(result.outputs)
    return results


def _nats(model: DraftingModel, prompt: Sequence[int], output: Sequence[int]) -> float:
    """-ln p of the output after the prompt."""
    logits = read_output(model, prompt, output).logits.float()
    wanted = torch.tensor(list(output), device=model.device)
    return float(torch.nn.functional.cross_entropy(logits, wanted, reduction="sum"))
