"""Training of VocabularyHeads on kept states, and their accuracy."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from lattice_bpd.models.heads import VocabularyHeads
from lattice_bpd.token_ids import Int64Array
from lattice_bpd.train.optimizers import build_optimizers, set_rates, take_step
from lattice_bpd.watcher import SilentWatcher, Watcher

_BATCH = 2048  # positions that are measured at once


@dataclass(frozen=True)
class VocabularyHeadsOptions:
    """Options of `train_vocabulary_heads`.

    Attributes:
        draft_vocab_size: K, most tokens of the draft vocabulary.
        num_slots: H.
        inner_size: F, the width of each network's hidden layer.
        reads_exact_token: see VocabularyHeads.
        epochs: passes over the positions.
        batch_size: positions per step.
        learning_rate: AdamW's.
        warmup: steps of linear warm-up; then a cosine down to 5 %.
        seed: of the initial weights and of the order of positions.
    """

    draft_vocab_size: int = 8192
    num_slots: int = 5
    inner_size: int = 256
    reads_exact_token: bool = True
    epochs: float = 6.0
    batch_size: int = 512
    learning_rate: float = 1.5e-3
    warmup: int = 30
    seed: int = 0


class Positions(NamedTuple):
    """Positions to train on, or to measure.

    Attributes:
        states: (N, D) bfloat16, the states that predicted the exact tokens, memory-mapped.
        rows: (M,) int64, the rows of the positions.
        exact_tokens: (M,) int64.
        labels: (M, H) int64, the tokens after the exact one; -1 beyond the response's end.
    """

    states: Tensor
    rows: Tensor
    exact_tokens: Tensor
    labels: Tensor


def find_positions(
    states: Tensor, responses: Sequence[Sequence[int]], chosen: Sequence[int], num_slots: int
) -> Positions:
    """The positions of some responses that are followed by a token.

    Args:
        states: of all responses, see `read_states`.
        responses: token ids of all.
        chosen: indices of the responses whose positions are wanted.
        num_slots: H.
    """
    starts = np.cumsum([0, *map(len, responses)])
    rows: list[Int64Array] = [np.zeros(0, np.int64)]
    exact, labels = list(rows), []
    for number in chosen:
        ids = np.asarray(responses[number], np.int64)
        padded = np.concatenate([ids, np.full(num_slots, -1)])
        count = max(len(ids) - 1, 0)
        rows.append(np.arange(starts[number], starts[number] + count))
        exact.append(ids[:count])
        labels.append(np.lib.stride_tricks.sliding_window_view(padded[1:], num_slots)[:count])
    flat = np.concatenate([np.zeros((0, num_slots), np.int64), *labels])
    arrays = (np.concatenate(rows), np.concatenate(exact), flat)
    return Positions(states, *map(torch.from_numpy, arrays))


def most_frequent(responses: Sequence[Sequence[int]], size: int) -> list[int]:
    """The most frequent token ids of responses, at most `size`, in ascending order."""
    counts = np.bincount(np.concatenate([np.asarray(one, np.int64) for one in responses]))
    order = np.argsort(-counts, kind="stable")[:size]
    return sorted(int(token) for token in order if counts[token])


def train_vocabulary_heads(
    model: PreTrainedModel,
    positions: Positions,
    token_ids: Sequence[int],
    options: VocabularyHeadsOptions | None = None,
    watcher: Watcher | None = None,
) -> VocabularyHeads:
    """New heads, trained on kept states.

    Tokens outside the draft vocabulary are not trained on.

    Args:
        model: the target, unchanged.
        positions: M positions to train on.
        token_ids: the draft vocabulary.
        options: see VocabularyHeadsOptions.
        watcher: receives progress: stage "heads", a step for each optimizer step.

    Raises:
        ValueError: no position, or a loss that is not finite.
    """
    options, watcher = options or VocabularyHeadsOptions(), watcher or SilentWatcher()
    count = len(positions.rows)
    if count == 0:
        raise ValueError("train_vocabulary_heads: no position; expected responses of two tokens")
    vocab_size, width = model.get_output_embeddings().weight.shape  # type: ignore[no-untyped-call]
    torch.manual_seed(options.seed)
    heads = VocabularyHeads(
        token_ids, width, vocab_size, num_slots=options.num_slots, inner_size=options.inner_size,
        reads_exact_token=options.reads_exact_token,
    ).to(model.device)  # fmt: skip
    heads.attach(model)
    index_of = torch.full((vocab_size + 1,), -1)  # the last one for labels of -1
    index_of[heads.token_ids.cpu()] = torch.arange(len(token_ids))
    size = min(options.batch_size, count)
    steps = max(1, math.ceil(options.epochs * count / size))
    optimizers = build_optimizers(
        heads, options.learning_rate, options.learning_rate, optimizer="adamw"
    )
    generator = torch.Generator().manual_seed(options.seed)
    order = torch.cat([
        torch.randperm(count, generator=generator) for _ in range(math.ceil(options.epochs) + 1)
    ])  # fmt: skip
    watcher.begin("heads", steps)
    start = time.perf_counter()
    for step in range(steps):
        set_rates(optimizers, step, steps, options.warmup)
        batch = order[step * size : (step + 1) * size]
        labels = index_of[positions.labels[batch]].to(model.device)
        with _autocast(model):
            logits = _draft_logits(heads, positions, batch)
        losses = F.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-1, reduction="sum"
        )
        loss = losses / max(1, int((labels >= 0).sum()))
        value = float(loss.detach())
        if not math.isfinite(value):
            raise ValueError(
                f"train_vocabulary_heads: the loss of step {step} is {value}; lower the learning "
                "rate"
            )
        take_step(optimizers, loss * options.num_slots)
        rate = (step + 1) * size / (time.perf_counter() - start)
        watcher.advance(note=f"loss {value:.3f}, {rate:,.0f} positions/s")
    watcher.end()
    return heads.eval()


@torch.inference_mode()
def measure_accuracy(
    model: PreTrainedModel, heads: VocabularyHeads, positions: Positions
) -> list[float]:
    """For each slot the share of positions whose token is the head's best candidate."""
    heads.attach(model)
    right = torch.zeros(heads.num_slots)
    for start in range(0, len(positions.rows), _BATCH):
        batch = torch.arange(start, min(start + _BATCH, len(positions.rows)))
        with _autocast(model):
            logits = _draft_logits(heads, positions, batch)
        best = heads.token_ids[logits.argmax(dim=-1)].cpu()
        right += (best == positions.labels[batch]).sum(dim=0)
    totals = (positions.labels >= 0).sum(dim=0).clamp(min=1)
    return [float(share) for share in right / totals]


def _draft_logits(heads: VocabularyHeads, positions: Positions, batch: Tensor) -> Tensor:
    """(N, H, K) logits at some positions."""
    device = heads.outer_bias.device
    hidden = positions.states[positions.rows[batch]].to(device)
    return heads.draft_logits(hidden, positions.exact_tokens[batch].to(device))


def _autocast(model: PreTrainedModel) -> torch.autocast:
    """Matrix products in bfloat16 where that is fast."""
    return torch.autocast(model.device.type, torch.bfloat16)
