"""Drafts before and after rescoring, where the LM removes repetitions of the heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lattice_bpd.draft.rescore import rescore_lattice
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd_kim2024.blockwise import BlockwiseLM


@dataclass(frozen=True)
class Repair:
    """One step's draft before and after rescoring.

    Attributes:
        context: tokens before the draft, the exact token last.
        before: (H,) the argmax of every head.
        after: (H,) the best path with the LM.
        accepted_before: leading tokens of `before` that the target agrees with.
        accepted_after: likewise of `after`.
    """

    context: list[int]
    before: list[int]
    after: list[int]
    accepted_before: int
    accepted_after: int

    @property
    def gain(self) -> tuple[int, int]:
        """Repetitions removed, then tokens gained; larger is better."""
        repaired = _stutters(self.context[-1], self.before) - _stutters(
            self.context[-1], self.after
        )
        return min(repaired, self.accepted_after - self.accepted_before), self.accepted_after


@torch.inference_mode()
def find_repairs(
    model: BlockwiseLM,
    lm: NGramLM,
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    *,
    top_k: int = 16,
    alpha: float = 0.5,
    count: int = 2,
) -> list[Repair]:
    """The steps at which rescoring helps most, at most one of each prompt.

    Args:
        model: target and heads.
        lm: n-gram LM.
        prompts: token ids.
        outputs: the target's greedy output after each prompt.
        top_k: k.
        alpha: weight of the LM.
        count: maximum number of examples.

    Returns:
        Up to `count` repairs, best first.
    """
    best = [
        max(_steps(model, lm, list(prompt), list(output), top_k, alpha), key=lambda step: step.gain)
        for prompt, output in zip(prompts, outputs, strict=True)
        if len(output) > model.num_slots
    ]
    return sorted(best, key=lambda step: step.gain, reverse=True)[:count]


def _steps(
    model: BlockwiseLM, lm: NGramLM, prompt: list[int], output: list[int], top_k: int, alpha: float
) -> list[Repair]:
    """Both drafts at every position of one greedy output that has H tokens after it."""
    tokens = prompt + output
    slots = model.num_slots
    exact_indices = range(len(prompt), len(tokens) - slots)
    ids = torch.tensor([tokens], device=model.device)
    hidden = model.hidden_states(ids[:, : model.max_positions or len(tokens)])[0]
    head_logits = model.head_logits(hidden[len(prompt) - 1 : len(tokens) - slots - 1])  # (N, H, V)
    contexts = [tokens[: index + 1] for index in exact_indices]
    rescored = rescore_lattice(
        head_logits, contexts, lm, top_k=top_k, num_drafts=1, alpha=alpha
    ).token_ids[:, 0]  # (N, H)
    argmax = head_logits.argmax(dim=-1)  # (N, H)
    wanted = ids[0, len(prompt) + 1 :].unfold(0, slots, 1)  # (N, H): the target's tokens
    kept_before, kept_after = (
        (drafts == wanted).long().cumprod(dim=1).sum(dim=1).tolist()
        for drafts in (argmax, rescored)
    )
    lines = zip(contexts, argmax.tolist(), rescored.tolist(), kept_before, kept_after, strict=True)
    return [Repair(*line) for line in lines]


def _stutters(exact: int, draft: Sequence[int]) -> int:
    return sum(a == b for a, b in zip([exact, *draft], draft, strict=False))
