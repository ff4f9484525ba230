"""A draft model under sampling: predicted and measured tokens per call and speed.

Predictions follow Leviathan et al. 2023 (`costs.speculation`): the acceptance rate is computed from
both models' distributions along the output, by plain forward calls; the rest is counted and timed.
The paper's cost coefficient c compares calls of the two models; what else drafting takes (sampling,
layout and cache) is measured beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lattice_bpd.decode.drafters.drafter import Drafter, NoDrafter
from lattice_bpd.decode.loop.decode import decode
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.decode.state.statistics import DecodeStats
from lattice_bpd.decode.strategies import DraftSources, make_drafter
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.verify.acceptance.sampling import Rejection, Sampled
from lattice_bpd.verify.acceptance.warp import Warp
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd_kim2024.costs import (
    Prediction,
    acceptance_rate,
    estimate_rate,
    shared_noise_rate,
)

Rule = Sampled | Rejection


@dataclass(frozen=True)
class SpeculationRun:
    """A draft model at one draft length under one rule.

    Attributes:
        rule: of sampling.
        prediction: acceptance rate, cost and what follows from them. The cost is the mean time of
            a call of the draft model in calls of the target without drafts, prompts' calls left
            out.
        judged_rate: the predicted acceptance rate of the draft tokens that were judged. The
            prediction's is over all tokens; the two differ where acceptances depend on each other,
            since the token after an accepted draft is not judged.
        overhead: time of drafting besides calls of the draft model, for each draft token, in calls
            of the target; not part of the prediction.
        tokens_per_call: measured, of calls whose draft had the full length.
        acceptance_rate: measured, see `estimate_rate`.
        improvement: measured, tokens per second relative to the same rule without drafts.
        tokens: decoded.
        calls: of the target, verifying ones.
    """

    rule: Rule
    prediction: Prediction
    judged_rate: float
    overhead: float
    tokens_per_call: float
    acceptance_rate: float
    improvement: float
    tokens: int
    calls: int

    def to_json(self) -> dict[str, Any]:
        """A line of a table: predicted columns, and those with `measured_`."""
        return {
            "rule": str(self.rule),
            **self.prediction.to_json(),
            "judged_acceptance_rate": self.judged_rate,
            "overhead": self.overhead,
            "measured_acceptance_rate": self.acceptance_rate,
            "measured_tokens_per_call": self.tokens_per_call,
            "measured_improvement": self.improvement,
            "tokens": self.tokens,
            "calls": self.calls,
        }


def measure_speculation(
    model: Any,
    draft_model: Any,
    prompts: Sequence[Sequence[int]],
    rules: Sequence[Rule],
    draft_lengths: Sequence[int],
    *,
    max_new_tokens: int = 64,
    stop_token_ids: Collection[int] = (),
    on_text: Callable[[], None] | None = None,
) -> list[SpeculationRun]:
    """Sample all prompts with drafts of each length, and compare with the theory.

    Prompts are decoded one at a time; the lengths and plain sampling take
    turns, so that other load on the machine affects all of them. Each begins with the first prompt
    once more, untimed, since the first calls of a model test what it supports.

    Args:
        model: the target, a causal LM.
        draft_model: a small causal LM with the target's tokenizer.
        prompts: token ids.
        rules: Sampled or Rejection.
        draft_lengths: g, 1 or more each.
        max_new_tokens: most tokens after each prompt.
        stop_token_ids: a text ends after the first of these.
        on_text: called after each text.

    Returns:
        A SpeculationRun for each rule and length, lengths in the given order.

    Raises:
        ValueError: nothing to run, lengths below 1 or not below max_new_tokens, texts that all end
            at their first token, or what `decode` refuses.
    """
    options = {"max_new_tokens": max_new_tokens, "stop_token_ids": stop_token_ids}
    most = max_new_tokens - 2  # two tokens come without a draft of the full length
    if not prompts or not rules or not draft_lengths or min(draft_lengths) < 1:
        raise ValueError(
            f"measure_speculation: {len(prompts)} prompts, {len(rules)} rules, draft lengths "
            f"{list(draft_lengths)}; expected one or more of each, and lengths of 1 or more"
        )
    if max(draft_lengths) > most:
        raise ValueError(
            f"measure_speculation: draft lengths {list(draft_lengths)} with {max_new_tokens} new "
            f"tokens; expected lengths of at most {most}"
        )
    runs = []
    for rule in rules:
        plain = _Run(NoDrafter())
        drafted = [_Run(_DraftLengths(draft_model, length)) for length in draft_lengths]
        for run in (plain, *drafted):
            run.warm_up(model, prompts[0], rule, options)
        for prompt in prompts:
            for run in (plain, *drafted):
                run.decode(model, prompt, rule, options)
                if on_text is not None:
                    on_text()
        runs += [run.summarize(model, draft_model, prompts, rule, plain) for run in drafted]
    return runs


def read_probs(model: Any, warp: Warp, prompt: Sequence[int], output: Sequence[int]) -> Any:
    """The distributions that sampled an output, by one plain call of a model.

    Args:
        model: a causal LM.
        warp: of the rule.
        prompt: token ids.
        output: m token ids.

    Returns:
        (m, V) float64.
    """
    tokens = torch.tensor([[*prompt, *output]], device=model.device)
    with torch.inference_mode():
        logits = model(input_ids=tokens[:, :-1]).logits[0, len(prompt) - 1 :]
    scores: npt.NDArray[np.float64] = np.stack([warp.apply(row) for row in logits]).astype(float)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def count_parameters(model: Any) -> int:
    """Parameters of a model, about half its operations for a token."""
    return sum(weight.numel() for weight in model.parameters())


class _TimedModel:
    """A draft model whose calls are timed, as `DecodeStats` times those of the target.

    Attributes:
        calls: of new tokens, after the prompt.
        seconds: of these.
        prompt_seconds: of reading prompts.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.calls, self.seconds, self.prompt_seconds = 0, 0.0, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        output = self._model(*args, **options)
        self.seconds += time.perf_counter() - start
        self.calls += 1
        return output

    def read_prompts(self, *args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        output = self._model.read_prompts(*args, **options)
        self.prompt_seconds += time.perf_counter() - start
        return output


class _DraftLengths(Drafter):
    """A draft model that notes the length of each draft and the time of its model's calls."""

    def __init__(self, draft_model: Any, length: int) -> None:
        config = DraftConfig("draft_model", draft_length=length)
        self.drafter = make_drafter(config, DraftSources(draft_model))
        reader: Any = vars(self.drafter)["reader"]
        reader.model = self.model = _TimedModel(reader.model)
        self.max_nodes, self.lengths = length, list[int]()

    def reset(self) -> None:
        """Forget lengths and times."""
        self.lengths = []
        self.model.calls, self.model.seconds, self.model.prompt_seconds = 0, 0.0, 0.0

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree | None]:
        trees = list(self.drafter.propose(states))
        self.lengths += [0 if tree is None else tree.max_depth for tree in trees]
        return trees


@dataclass
class _Run:
    """The texts of one drafter."""

    drafter: Drafter
    stats: DecodeStats = field(default_factory=DecodeStats)
    outputs: list[list[int]] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)

    def warm_up(
        self, model: Any, prompt: Sequence[int], rule: Rule, options: dict[str, Any]
    ) -> None:
        """Decode a text that does not count."""
        decode(model, prompt, self.drafter, acceptance=rule, **options)
        if isinstance(self.drafter, _DraftLengths):
            self.drafter.reset()

    def decode(
        self, model: Any, prompt: Sequence[int], rule: Rule, options: dict[str, Any]
    ) -> None:
        result = decode(model, prompt, self.drafter, acceptance=rule, **options)
        self.stats.merge(result.stats)
        self.outputs.append(result.token_ids)
        if isinstance(self.drafter, _DraftLengths):
            accepts = result.stats.accept_lengths
            lengths, self.drafter.lengths = self.drafter.lengths, []
            # Where no draft fits, the drafter is not called: only in the last call.
            lengths += [0] * (len(accepts) - len(lengths))
            if accepts and len(result.token_ids) == sum(accepts) + len(accepts):
                lengths[-1] = accepts[-1]  # a draft token ended the text: no later one was judged
            self.drafted += lengths
            self.accepted += accepts

    def summarize(
        self, model: Any, draft_model: Any, prompts: Sequence[Sequence[int]], rule: Rule,
        plain: _Run,
    ) -> SpeculationRun:  # fmt: skip
        assert isinstance(self.drafter, _DraftLengths)
        length, timed = self.drafter.max_nodes, self.drafter.model
        pairs = list(zip(prompts, self.outputs, strict=True))
        target = np.concatenate([read_probs(model, rule.warp, *pair) for pair in pairs])
        draft = np.concatenate([read_probs(draft_model, rule.warp, *pair) for pair in pairs])
        rate, judged_rate = (
            acceptance_rate(target[rows], draft[rows], rule.lenience)
            if isinstance(rule, Rejection)
            else shared_noise_rate(target[rows], draft[rows])
            for rows in (slice(None), self._find_judged())
        )
        calls = plain.stats.target_calls - len(prompts)  # without the prompts' own
        if calls == 0 or not self.drafted:
            raise ValueError(
                f"measure_speculation: each of the {len(prompts)} texts ends at its first token; "
                "expected longer ones: give other prompts"
            )
        target_seconds = plain.stats.seconds["target"] / calls
        cost = timed.seconds / timed.calls / target_seconds
        others = self.stats.seconds["draft_model"] - timed.seconds - timed.prompt_seconds
        full = [a + 1 for a, d in zip(self.accepted, self.drafted, strict=True) if d == length]
        return SpeculationRun(
            rule,
            Prediction(rate, length, cost, count_parameters(draft_model) / count_parameters(model)),
            judged_rate,
            others / sum(self.drafted) / target_seconds,
            float(np.mean(full)),
            estimate_rate(self.accepted, self.drafted),
            self.stats.tokens_per_second / plain.stats.tokens_per_second,
            self.stats.tokens,
            len(self.accepted),
        )

    def _find_judged(self) -> npt.NDArray[np.bool_]:
        """(tokens of all outputs,) whether a draft token was judged at each."""
        judged = [np.zeros(len(output), np.bool_) for output in self.outputs]
        calls = iter(zip(self.accepted, self.drafted, strict=True))
        for of_text in judged:
            start = 1  # after the token that the prompt's call gives
            while start < len(of_text):
                accepted, drafted = next(calls)
                of_text[start : start + min(accepted + 1, drafted)] = True
                start += accepted + 1
        return np.concatenate(judged)
