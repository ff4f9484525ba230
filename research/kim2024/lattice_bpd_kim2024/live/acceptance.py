"""What acceptance rules gain and cost in live decoding.

The weights of drafts are tuned at each temperature on other texts than the reported ones. Outputs
under `Sampled` are compared with plain sampling token by token.

A replay cannot evaluate lossy rules, since their output is not greedy's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from lattice_bpd.decode.drafters.drafter import Drafter, NoDrafter
from lattice_bpd.decode.drafters.tree import SampledTreeDrafter, TreeDrafter
from lattice_bpd.decode.huggingface.generate import generate
from lattice_bpd.decode.loop.decode import decode
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.decode.state.statistics import DecodeStats
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.verify.acceptance.rules import Acceptance
from lattice_bpd.verify.acceptance.sampling import Rejection, Sampled
from lattice_bpd_kim2024.blockwise import BlockwiseLM, to_drafting
from lattice_bpd_kim2024.record.heads import read_output

Weights = tuple[float, float]  # alpha of the LM, temperature of drafts
SEED = 1
WITH_LM: tuple[Weights, ...] = ((0.5, 1.0), (0.5, 1.5), (1.0, 2.0), (1.2, 3.0))
WITHOUT_LM: tuple[Weights, ...] = ((0.0, 1.0), (0.0, 1.5), (0.0, 2.0))


@dataclass(frozen=True)
class SampledDrafts:
    """A kind of drafts for targets that sample.

    Attributes:
        name: for tables.
        rule: Sampled or Rejection.
        is_sampled: whether drafts are sampled; otherwise they are the most probable tree.
        uses_lm: whether the n-gram LM rescores them.
    """

    name: str
    rule: type[Sampled] | type[Rejection]
    is_sampled: bool
    uses_lm: bool

    def make_drafter(self, lm: NGramLM, weights: Weights, max_nodes: int) -> Drafter:
        """A drafter of this kind."""
        used = lm if self.uses_lm else None
        make = SampledTreeDrafter if self.is_sampled else TreeDrafter
        return make(used, max_nodes=max_nodes, alpha=weights[0], temperature=weights[1])


SAMPLED_DRAFTS = (
    SampledDrafts("independent heads, sampled", Rejection, True, False),
    SampledDrafts("rescored, sampled", Rejection, True, True),
    SampledDrafts("heads' tree", Rejection, False, False),
    SampledDrafts("rescored tree", Rejection, False, True),
    SampledDrafts("heads' tree, shared noise", Sampled, False, False),
    SampledDrafts("rescored tree, shared noise", Sampled, False, True),
)


@dataclass(frozen=True)
class SamplingGain:
    """A kind of drafts at a temperature.

    Attributes:
        name: of the kind.
        rule: name of the acceptance rule.
        temperature: of sampling.
        alpha: tuned weight of the LM.
        draft_temperature: tuned.
        texts: that were decoded.
        tokens: of them.
        block_efficiency: tokens / target calls.
        accept_length: accepted draft tokens per verifying call, on average.
        same_texts: outputs equal to those of plain sampling; None for Rejection, which has only the
            same distribution.
    """

    name: str
    rule: str
    temperature: float
    alpha: float
    draft_temperature: float
    texts: int
    tokens: int
    block_efficiency: float
    accept_length: float
    same_texts: int | None

    def to_json(self) -> dict[str, Any]:
        """A line of "sampling" in results.json."""
        return asdict(self)


def compare_sampling(
    model: BlockwiseLM,
    lm: NGramLM,
    tuning_prompts: Sequence[Sequence[int]],
    prompts: Sequence[Sequence[int]],
    *,
    temperatures: Sequence[float] = (0.3, 0.7, 1.0),
    max_nodes: int = 24,
    max_new_tokens: int = 64,
    on_decode: Callable[[], None] | None = None,
) -> list[SamplingGain]:
    """Sample all prompts with each kind of drafts at each temperature.

    Args:
        model: target and heads.
        lm: over its token ids.
        tuning_prompts: on which alpha and the drafts' temperature are chosen.
        prompts: reported on.
        temperatures: of sampling.
        max_nodes: draft tokens of a call.
        max_new_tokens: after each prompt; there are no stop tokens.
        on_decode: called after each batch of prompts.

    Returns:
        A line for each temperature and kind, kinds in the order of SAMPLED_DRAFTS.

    Raises:
        ValueError: no prompt, or what `generate` refuses.
    """
    if not prompts or not tuning_prompts:
        raise ValueError(
            f"compare_sampling: found {len(prompts)} prompts and {len(tuning_prompts)} to tune on; "
            "expected one or more of each"
        )

    def decode(texts: Sequence[Sequence[int]], drafter: Drafter, rule: Acceptance) -> Any:
        results = generate(
            model.base, texts, drafter, heads=model.heads, acceptance=rule,
            max_new_tokens=max_new_tokens,
        )  # fmt: skip
        if on_decode is not None:
            on_decode()
        stats = DecodeStats()
        for result in results:
            stats.merge(result.stats)
        return [result.token_ids for result in results], stats

    lines = []
    for temperature in temperatures:
        plain, _ = decode(prompts, NoDrafter(), Sampled(temperature, seed=SEED))
        for kind in SAMPLED_DRAFTS:
            rule = kind.rule(temperature, seed=SEED)

            def efficiency(
                weights: Weights, kind: SampledDrafts = kind, rule: Acceptance = rule
            ) -> float:
                drafter = kind.make_drafter(lm, weights, max_nodes)
                return float(decode(tuning_prompts, drafter, rule)[1].block_efficiency)

            best = max(WITH_LM if kind.uses_lm else WITHOUT_LM, key=efficiency)
            outputs, stats = decode(prompts, kind.make_drafter(lm, best, max_nodes), rule)
            same = sum(ours == theirs for ours, theirs in zip(outputs, plain, strict=True))
            lines.append(
                SamplingGain(
                    kind.name, rule.name, temperature, *best, len(outputs), stats.tokens,
                    stats.block_efficiency, sum(stats.accept_lengths) / len(stats.accept_lengths),
                    same if kind.rule is Sampled else None,
                )
            )  # fmt: skip
    return lines


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
    target = to_drafting(model)
    results = [RuleResult(rule) for rule in rules]
    for result in results:
        for prompt in prompts:
            output = decode(
                target, prompt, make_drafter(), max_new_tokens=max_new_tokens,
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
