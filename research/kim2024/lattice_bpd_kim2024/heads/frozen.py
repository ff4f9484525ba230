"""Training draft heads on precomputed hidden states of a frozen target.

Each step evaluates only the heads: even with a small target this gives ten times as many steps in
the same time as `train_blockwise` with train_base=False. The states take (positions, D) numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from lattice_bpd.models.heads import BlockwiseHeads
from lattice_bpd.token_ids import integer_array, to_token_ids
from lattice_bpd.train.trainer import Trainer, TrainReport
from lattice_bpd_kim2024.blockwise import BlockwiseLM
from lattice_bpd_kim2024.heads.losses import chunked_cross_entropy
from lattice_bpd_kim2024.heads.optimizers import build_optimizers

_ROWS = 64  # rows per call of the target


@dataclass(frozen=True)
class FrozenOptions:
    """Options of `train_frozen`.

    Attributes:
        steps: optimizer steps.
        batch_size: positions per step; many small steps train better than few large ones.
        matrix_lr: Muon's learning rate, for matrices.
        other_lr: AdamW's, for biases.
        warmup: steps of linear warm-up; then a cosine down to 5 %.
        seed: seed of the batches.
        first_position: first position of a row to train on; P - 1 if rows start with a prompt of
            P tokens that the target did not generate.
    """

    steps: int = 1000
    batch_size: int = 512
    matrix_lr: float = 0.02
    other_lr: float = 0.01
    warmup: int = 30
    seed: int = 0
    first_position: int = 0


def train_frozen(
    model: BlockwiseLM,
    rows: npt.ArrayLike,
    options: FrozenOptions | None = None,
    on_step: Callable[[TrainReport], None] | None = None,
    on_states: Callable[[], None] | None = None,
) -> TrainReport:
    """Trains the draft heads in place; the target is unchanged.

    Args:
        model: on any device; left in evaluation mode.
        rows: (N, T) ints, texts of equal length T > h; trains on all positions followed by h
            tokens, whose states take N * (T - h) * D numbers of memory.
        options: see FrozenOptions.
        on_step: called after every step.
        on_states: called once, after the hidden states are computed.

    Returns:
        The report of the last step; its losses are L_2 .. L_h, nats per token.

    Raises:
        TypeError: heads that are not BlockwiseHeads.
        ValueError: rows of another shape, ids outside the vocabulary, options out of range, or a
            loss that is not finite.
    """
    options = options or FrozenOptions()
    ids = torch.from_numpy(integer_array(rows, "train_frozen: rows").astype(np.int64))
    _check(model, ids, options)
    states, labels = _read_states(model, ids, options.first_position)
    if on_states is not None:
        on_states()
    generator = torch.Generator().manual_seed(options.seed)
    model.base.requires_grad_(False)
    try:
        report = _run(model, states, labels, options, generator, on_step)
    finally:
        model.base.requires_grad_(True)
    model.eval()
    return report


def _run(
    model: BlockwiseLM,
    states: Tensor,
    labels: Tensor,
    options: FrozenOptions,
    generator: torch.Generator,
    on_step: Callable[[TrainReport], None] | None,
) -> TrainReport:
    def backward(_: int) -> dict[int, float]:
        batch = torch.randint(len(states), (options.batch_size,), generator=generator, device="cpu")
        batch = batch.to(states.device)
        losses = _losses(model, states[batch], labels[batch])  # (H,)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        return dict(enumerate(losses.tolist(), 2))

    report = TrainReport(0, options.steps)
    optimizers = build_optimizers(model, options.matrix_lr, options.other_lr)
    trainer = Trainer({}, optimizers, report, backward, options.warmup, where="train_frozen")
    trainer.run(on_step=None if on_step is None else lambda _: on_step(report))
    return report


def _losses(model: BlockwiseLM, states: Tensor, labels: Tensor) -> Tensor:
    """(H,) mean cross entropies of states (N, D) against labels (N, H)."""
    heads = cast(nn.Module, model.heads)  # BlockwiseHeads or another source of logits
    outputs = heads(states).flatten(0, 1)
    return chunked_cross_entropy(model, outputs, labels.flatten()).view(labels.shape).mean(dim=0)


@torch.no_grad()
def _read_states(model: BlockwiseLM, ids: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """The target's states (N, D) and the tokens 2..h later (N, H), at positions from `first`."""
    length = ids.shape[1] - model.num_heads
    states = []
    for batch in torch.split(ids, _ROWS):
        hidden = model.hidden_states(batch[:, :length].to(model.device))
        states.append(hidden[:, first:].flatten(0, 1))
    labels = ids[:, 2:].unfold(1, model.num_slots, 1)[:, first:length]
    return torch.cat(states), labels.flatten(0, 1).to(model.device)


def _check(model: BlockwiseLM, ids: Tensor, options: FrozenOptions) -> None:
    if not isinstance(model.heads, BlockwiseHeads):
        raise TypeError(
            f"train_frozen: the heads are {type(model.heads).__name__}; expected BlockwiseHeads; "
            "train other heads with the code that defines them"
        )
    limit = model.max_positions or ids.shape[-1]
    if ids.ndim != 2 or len(ids) == 0 or not model.num_heads < ids.shape[1] <= limit + 1:
        raise ValueError(
            f"train_frozen: rows has shape {tuple(ids.shape)}; expected (N, T) with T from "
            f"{model.num_heads + 1} (heads + 1) to {limit + 1} (positions + 1); cut or join texts"
        )
    to_token_ids(ids.flatten(), "train_frozen: rows", model.vocab_size)
    if not 0 <= options.first_position < ids.shape[1] - model.num_heads:
        raise ValueError(
            f"train_frozen: first_position is {options.first_position}; expected 0.."
            f"{ids.shape[1] - model.num_heads - 1} for rows of {ids.shape[1]} tokens and "
            f"{model.num_heads} heads"
        )
    if min(options.steps, options.batch_size) < 1:
        raise ValueError(
            f"train_frozen: steps {options.steps}, batch_size {options.batch_size}; expected 1 or "
            "more of each"
        )
