"""Training of VocabularyHeads on kept states, and their accuracy."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from lattice_bpd.models.head_files import identify
from lattice_bpd.models.hooks import device_of
from lattice_bpd.models.linear import has_fast_bfloat16, linear
from lattice_bpd.models.vocabulary_heads import VocabularyHeads, take_rows
from lattice_bpd.token_ids import Int64Array
from lattice_bpd.train.head_states import KeptStates
from lattice_bpd.train.responses.collect import Exchange
from lattice_bpd.train.trainer import Trainer, TrainReport
from lattice_bpd.watcher import Watcher

_BATCH = 2048  # positions that are measured at once
_ROWS = 256  # of logits at once on a CPU: they fit its cache
_LIKELY = 32  # of the target's most probable tokens that are learned
_RATE, _DECAY = 1.5e-3, 0.3  # of AdamW
_WARMUP, _SAVE_EVERY = 30, 100  # steps, ten times as many on a GPU
_CHANGED = 0.25  # of a response's tokens


@dataclass(frozen=True)
class VocabularyHeadsOptions:
    """Options of `train_vocabulary_heads`.

    Attributes:
        draft_vocab_size: K, most tokens of the draft vocabulary.
        num_slots: H.
        inner_size: F, the width of each network's hidden layer.
        epochs: passes over the positions.
        batch_size: positions per step.
    """

    draft_vocab_size: int = 8192
    num_slots: int = 5
    inner_size: int = 1024
    epochs: float = 6.0
    batch_size: int = 512


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
    states: KeptStates, responses: Sequence[Sequence[int]], chosen: Sequence[int], num_slots: int
) -> Positions:
    """The positions of some responses that are followed by a token.

    Args:
        states: of all responses.
        responses: token ids of all.
        chosen: indices of the responses whose positions are wanted.
        num_slots: H.
    """
    rows: list[Int64Array] = [np.zeros(0, np.int64)]
    exact, labels = list(rows), []
    for number in chosen:
        ids = np.asarray(responses[number], np.int64)
        padded = np.concatenate([ids, np.full(num_slots, -1)])
        count = max(len(ids) - 1, 0)
        rows.append(states.starts[number] + np.arange(count))
        exact.append(ids[:count])
        labels.append(np.lib.stride_tricks.sliding_window_view(padded[1:], num_slots)[:count])
    flat = np.concatenate([np.zeros((0, num_slots), np.int64), *labels])
    arrays = (np.concatenate(rows), np.concatenate(exact), flat)
    return Positions(states.rows, *map(torch.from_numpy, arrays))


def vary_exchanges(
    model: PreTrainedModel,
    exchanges: Sequence[Exchange],
    states: KeptStates,
    chosen: Sequence[int],
    token_ids: Sequence[int],
) -> list[Exchange]:
    """More texts to train on, at the cost of reading them.

    In each a quarter of the response's tokens are others that the target finds likely there, so
    heads see what follows tokens that it would not have chosen. Up to as many tokens of the prompt
    count as response, so that heads are trained on them too.

    Args:
        model: the target.
        exchanges: prompts and responses.
        states: of their responses.
        chosen: indices of those to vary, one or more.
        token_ids: the draft vocabulary, whose tokens are put in.
    """
    generator, ids = torch.Generator().manual_seed(0), torch.tensor(token_ids, device="cpu")
    sizes = [len(exchanges[number].response) for number in chosen]
    tokens = torch.tensor([token for n in chosen for token in exchanges[n].response], device="cpu")
    places = [states.starts[n] + np.arange(size) for n, size in zip(chosen, sizes, strict=True)]
    changed = (
        (torch.rand(len(tokens), generator=generator, device="cpu") < _CHANGED).nonzero().squeeze(1)
    )
    rows = states.rows[torch.from_numpy(np.concatenate(places))[changed]]
    output_rows = take_rows(model.get_output_embeddings(), ids)  # type: ignore[no-untyped-call]
    indices, shares = _find_distributions(output_rows, rows)
    likely = ids[indices.long().cpu()]
    others = shares.float().cpu().masked_fill(likely == tokens[changed, None], 0.0) + 1e-9
    tokens[changed] = likely.gather(1, others.multinomial(1, generator=generator)).squeeze(1)
    varied = []
    for number, text in zip(chosen, torch.split(tokens, sizes), strict=True):
        one = exchanges[number]
        end = max(1, len(one.prompt) - len(text))
        varied.append(Exchange(one.chat, one.prompt[:end], [*one.prompt[end:], *text.tolist()]))
    return varied


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
    checkpoint: Path | None = None,
) -> VocabularyHeads:
    """New heads, trained on kept states to predict what the target predicts.

    Labels are the target's distributions (Hinton et al. 2015), of which states keep all that is
    needed. Tokens outside the draft vocabulary are not trained on.

    Args:
        model: the target, unchanged.
        positions: M positions to train on.
        token_ids: the draft vocabulary.
        options: see VocabularyHeadsOptions.
        watcher: receives progress: stage "heads", a step for each optimizer step.
        checkpoint: a file from which an interrupted training continues, and whose result a later
            one with the same arguments takes; None: none.

    Raises:
        ValueError: no position, or a loss that is not finite.
        FormatError: a damaged checkpoint.
        OSError: a checkpoint that cannot be written.
    """
    options, where = options or VocabularyHeadsOptions(), "train_vocabulary_heads"
    count = len(positions.rows)
    if count == 0:
        raise ValueError(f"{where}: no position; expected responses of two tokens")
    vocab_size, width = model.get_output_embeddings().weight.shape  # type: ignore[no-untyped-call]
    torch.manual_seed(0)
    device = device_of(model)
    with torch.device("cpu"):  # the same numbers for all devices
        heads = VocabularyHeads(
            token_ids, width, vocab_size, num_slots=options.num_slots, inner_size=options.inner_size
        ).to(device)
    heads.attach(model)
    # the last one for labels of -1
    is_known = torch.zeros(vocab_size + 1, dtype=torch.bool, device="cpu")
    is_known[heads.token_ids.cpu()] = True
    # Not where a checkpoint has the result.
    distributions = functools.cache(
        lambda: _find_distributions(heads.output_rows(), positions.states)
    )
    size = min(options.batch_size, count)
    steps = max(1, math.ceil(options.epochs * count / size))
    generator = torch.Generator().manual_seed(0)
    order = torch.cat([
        torch.randperm(count, generator=generator, device="cpu")
        for _ in range(math.ceil(options.epochs) + 1)
    ])  # fmt: skip

    def backward(step: int) -> dict[int, float]:
        batch = order[step * size : (step + 1) * size]
        predicted_by = positions.rows[batch, None] + torch.arange(
            1, options.num_slots + 1, device="cpu"
        )
        predicted_by[~is_known[positions.labels[batch]]] = -1
        labels = predicted_by.flatten().to(device)
        with _autocast(model):
            states = heads.draft_states(*_take(heads, positions, batch))
        loss, gradients = _cross_entropy(
            heads, states.detach().flatten(0, 1), labels, *distributions()
        )
        gradients *= options.num_slots
        states.backward(gradients.view_as(states).to(states.dtype))  # type: ignore[no-untyped-call]
        return {1: loss}

    weights, report = dict(heads.named_parameters()), TrainReport(0, steps)
    adamw = torch.optim.AdamW(weights.values(), _RATE, (0.9, 0.95), weight_decay=_DECAY, fused=True)
    key = _key(model, positions, token_ids, options)
    trainer = Trainer(weights, [adamw], report, backward, _WARMUP, key=key, where=where)

    def describe(losses: dict[int, float]) -> str:
        return f"loss {losses[1]:.3f}, {report.steps_per_second * size:,.0f} positions/s"

    every = _SAVE_EVERY * (1 if device.type == "cpu" else 10)
    trainer.run(checkpoint, watcher, stage="heads", every=every, on_step=describe)
    return heads.eval()


@torch.no_grad()
def _find_distributions(
    rows_of_tokens: tuple[Tensor, Tensor | None], states: Tensor
) -> tuple[Tensor, Tensor]:
    """(S, k) indices of the draft vocabulary's likeliest tokens at (S, D) states, and their shares.

    The shares of a state, bfloat16, sum to 1.
    """
    (weight, bias), found = rows_of_tokens, []
    for rows in torch.split(states, _BATCH):
        logits = linear(rows.to(weight), weight, bias)
        best = logits.topk(min(_LIKELY, len(weight)), dim=-1)
        found.append((best.indices.int(), best.values.softmax(dim=-1).bfloat16()))
    indices, shares = map(torch.cat, zip(*found, strict=True))
    return indices, shares


@torch.no_grad()
def _cross_entropy(
    heads: VocabularyHeads, states: Tensor, labels: Tensor, indices: Tensor, shares: Tensor
) -> tuple[float, Tensor]:
    """Mean cross entropy, nats, of the rows with a label, and its gradient, (N, D) float32.

    A few rows at a time and without float32 logits: on a CPU three times as fast as autograd.

    Args:
        heads: attached to the target.
        states: (N, D) float.
        labels: (N,) int64, rows of the distributions; -1: none.
        indices: (S, k) ints of the draft vocabulary.
        shares: (S, k) bfloat16, their probabilities.
    """
    weight, bias = heads.output_rows()
    dtype = torch.bfloat16 if has_fast_bfloat16(weight.device) else torch.float32
    weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
    known, total = labels >= 0, torch.zeros((), device=states.device)
    gradients = torch.zeros_like(states, dtype=torch.float32)
    size = _ROWS if states.device.type == "cpu" else max(1, len(states))
    for rows in torch.split(known.nonzero().squeeze(1), size):
        likely, share = indices[labels[rows]].long(), shares[labels[rows]].to(dtype)
        probs = F.linear(states[rows].to(dtype), weight, bias).softmax(dim=-1)
        total -= (probs.gather(1, likely).float().clamp_min(1e-30).log() * share).sum()
        probs.scatter_add_(1, likely, -share)
        gradients[rows] = (probs @ weight).float()
    count = max(1, int(known.sum()))
    return float(total) / count, gradients / count


def _key(
    model: PreTrainedModel, positions: Positions, token_ids: Sequence[int], options: object
) -> str:
    """A hash of the target, the texts, the draft vocabulary and the options; see `identify`."""
    tensors = b"".join(tensor.numpy().tobytes() for tensor in positions[1:])
    content = ("distributions", _DECAY, identify(model), list(token_ids), options)
    return hashlib.sha256(repr(content).encode() + tensors).hexdigest()


@torch.inference_mode()
def measure_accuracy(
    model: PreTrainedModel, heads: VocabularyHeads, positions: Positions
) -> list[float]:
    """For each slot the share of positions whose token is the head's best candidate."""
    heads.attach(model)
    right = torch.zeros(heads.num_slots, device="cpu")
    for start in range(0, len(positions.rows), _BATCH):
        batch = torch.arange(start, min(start + _BATCH, len(positions.rows)), device="cpu")
        with _autocast(model):
            logits = heads.draft_logits(*_take(heads, positions, batch))
        best = heads.token_ids[logits.argmax(dim=-1)].cpu()
        right += (best == positions.labels[batch]).sum(dim=0)
    totals = (positions.labels >= 0).sum(dim=0).clamp(min=1)
    return [float(share) for share in right / totals]


def _take(heads: VocabularyHeads, positions: Positions, batch: Tensor) -> tuple[Tensor, Tensor]:
    """(N, D) states and (N,) exact tokens of some positions, on the heads' device."""
    rows, bias = positions.rows[batch], heads.outer_bias
    return positions.states[rows].to(bias), positions.exact_tokens[batch].to(bias.device)


def _autocast(model: PreTrainedModel) -> torch.autocast:
    """Matrix products in bfloat16 where that is fast."""
    device = device_of(model)
    return torch.autocast(device.type, torch.bfloat16, has_fast_bfloat16(device))
