"""Teaches a small causal LM not to loop: unlikelihood training on its own greedy output.

Greedy decoding of a small LM falls into loops, in which any drafter is good. Each step continues
prompts greedily, lowers the probability of the tokens that complete a repeated window, and trains
on real text at the same time (Welleck et al. 2020, "Neural Text Generation with Unlikelihood
Training", section 4.2, the sequence level; windows of real text repeat too, so windows are long).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from lattice_bpd.train.trainer import Trainer, TrainReport
from lattice_bpd_kim2024.blockwise import BlockwiseLM
from lattice_bpd_kim2024.heads.optimizers import build_optimizers
from lattice_bpd_kim2024.heads.self_generated import generate_texts
from lattice_bpd_kim2024.statistics import find_repeats

_MOST_LIKELY = 1.0 - 1e-4  # probabilities are cut here: log(1 - p) has no gradient bound at 1


@dataclass(frozen=True)
class UnlikelihoodOptions:
    """How to train.

    Attributes:
        steps: optimizer steps.
        prompts: prompts that are continued in each step.
        prompt_length: tokens of a prompt.
        max_new_tokens: tokens of a continuation.
        window: a token is penalized if it ends a window that occurred earlier in its row.
        text_rows: rows of real text in each step, as long as prompt and continuation.
        weight: of the penalty beside the cross entropy of real text.
        matrix_lr: peak learning rate of Muon.
        other_lr: peak learning rate of AdamW.
        seed: of prompts and rows.
    """

    steps: int = 150
    prompts: int = 48
    prompt_length: int = 96
    max_new_tokens: int = 64
    window: int = 8
    text_rows: int = 12
    weight: float = 1.0
    matrix_lr: float = 0.004
    other_lr: float = 0.002
    seed: int = 0


def train_unlikelihood(
    model: BlockwiseLM,
    text: npt.NDArray[np.int32],
    options: UnlikelihoodOptions,
    on_step: Callable[[float, float], None],
) -> None:
    """Train the target in place; the draft heads are unchanged.

    Args:
        model: on the CPU.
        text: (N,) int32, real text; prompts and rows begin anywhere in it.
        options: see UnlikelihoodOptions.
        on_step: called after each step with the cross entropy of real text in nats a token, and
            the share of new tokens that end a repeated window.
    """
    base = model.base
    rng = np.random.default_rng(options.seed)
    length = options.prompt_length + options.max_new_tokens
    share = 0.0

    def backward(_: int) -> dict[int, float]:
        nonlocal share
        base.eval()  # type: ignore[no-untyped-call]
        prompts = _rows(text, rng, options.prompts, options.prompt_length)
        rows = generate_texts(base, prompts, options.max_new_tokens)
        marks = np.array([find_repeats(row, options.window) for row in rows.tolist()])
        marks[:, : options.prompt_length] = False
        base.train()
        cross_entropy = _text_loss(base, _rows(text, rng, options.text_rows, length + 1))
        loss = cross_entropy + options.weight * _penalty(base, rows, marks)
        loss.backward()  # type: ignore[no-untyped-call]
        share = float(marks[:, options.prompt_length :].mean())
        return {1: float(cross_entropy.detach())}

    optimizers = build_optimizers(model, options.matrix_lr, options.other_lr)
    trainer = Trainer({}, optimizers, TrainReport(0, options.steps), backward, warmup=5)
    trainer.run(on_step=lambda losses: on_step(losses[1], share))
    base.eval()  # type: ignore[no-untyped-call]
    model.zero_grad(set_to_none=True)


def _rows(
    text: npt.NDArray[np.int32], rng: np.random.Generator, count: int, length: int
) -> npt.NDArray[np.int32]:
    """(count, length) int32 from anywhere in the text."""
    starts = rng.integers(len(text) - length, size=count)
    return text[starts[:, None] + np.arange(length)]


def _text_loss(base: PreTrainedModel, rows: npt.NDArray[np.int32]) -> torch.Tensor:
    ids = torch.as_tensor(rows.astype(np.int64))
    logits = base(input_ids=ids[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def _penalty(
    base: PreTrainedModel, rows: npt.NDArray[np.int32], marks: npt.NDArray[np.bool_]
) -> torch.Tensor:
    """Mean of -log(1 - p) over the marked tokens, scaled by their share of the rows that loop."""
    looping = marks.any(axis=1)
    if not looping.any():
        return torch.zeros(())
    ids = torch.as_tensor(rows[looping].astype(np.int64))
    chosen = torch.as_tensor(marks[looping])[:, 1:]
    logits = base(input_ids=ids[:, :-1], use_cache=False).logits
    log_probs = logits.log_softmax(dim=-1).gather(2, ids[:, 1:, None]).squeeze(2)
    probabilities = log_probs[chosen].exp().clamp(max=_MOST_LIKELY)
    return -torch.log1p(-probabilities).mean()
