"""Training of a block drafter on a frozen target: options, sizes, losses, trainer.

Losses and gradients are computed a bounded number of logits at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from lattice_bpd.models.lm_call import find_max_positions
from lattice_bpd.token_ids import Int32Array
from lattice_bpd.train.trainer import TrainReport
from lattice_bpd_drafters.block_drafter import BlockDrafter
from lattice_bpd_drafters.config import BlockDrafterConfig
from lattice_bpd_drafters.features import read_features
from lattice_bpd_drafters.texts import BlockTexts, Pieces
from lattice_bpd_kim2024.heads.loop import RunTrainer
from lattice_bpd_kim2024.heads.losses import chunk_rows
from lattice_bpd_kim2024.heads.optimizers import build_optimizers
from lattice_bpd_kim2024.heads.parallel import ALONE, Processes


@dataclass(frozen=True)
class BlockTrainOptions:
    """Options of the training of a block drafter.

    Attributes:
        steps: optimizer steps.
        batch_size: pieces of text per step.
        sequence_length: tokens per piece; longer texts are read in pieces. None: 256, or as many
            as the target has positions for.
        anchors: blocks per piece.
        first_position: first position of a text that is an anchor: P - 1 if texts start with a
            prompt of P tokens that the target did not generate.
        gamma: the loss of slot j (from 1) has the weight exp(-(j - 1) / gamma), divided by the sum
            of all weights: a wrong token makes the later ones of the block useless.
        distillation: share of the loss that is the cross entropy with the target's distribution,
            0..1; the others are that with the text. Equals training on the KL divergence.
        matrix_lr: Muon's peak learning rate, for matrices.
        other_lr: AdamW's, for norms.
        warmup: steps of linear warm-up; then a cosine down to 5 %.
        clip: largest norm of the gradient; 0: none.
        precision: "fp32" or "bf16" (autocast).
        seed: seed of the weights, pieces and anchors.
        validate_every: steps between validations; 0: at the end only.
    """

    steps: int = 3000
    batch_size: int = 8
    sequence_length: int | None = None
    anchors: int = 32
    first_position: int = 0
    gamma: float = 4.0
    distillation: float = 0.0
    matrix_lr: float = 0.02
    other_lr: float = 0.01
    warmup: int = 100
    clip: float = 1.0
    precision: str = "fp32"
    seed: int = 0
    validate_every: int = 0

    def check(self) -> None:
        """Raise ValueError, naming the option, for values out of range."""
        for name in ("steps", "batch_size", "anchors"):
            _check(name, getattr(self, name), 1)
        for name in ("first_position", "warmup", "clip", "matrix_lr", "other_lr", "seed"):
            _check(name, getattr(self, name), 0)
        _check("validate_every", self.validate_every, 0)
        if self.sequence_length is not None:
            _check("sequence_length", self.sequence_length, 2)
        if not self.gamma > 0.0:
            raise ValueError(f"gamma is {self.gamma}; expected a number above 0")
        if not 0.0 <= self.distillation <= 1.0:
            raise ValueError(f"distillation is {self.distillation}; expected 0..1")
        if self.precision not in ("fp32", "bf16"):
            raise ValueError(f"precision is {self.precision!r}; expected fp32 or bf16")

    def slot_weights(self, num_slots: int) -> list[float]:
        """The weights of the slots' losses; they sum to 1."""
        weights = [math.exp(-slot / self.gamma) for slot in range(num_slots)]
        return [weight / sum(weights) for weight in weights]


def _check(name: str, value: float, minimum: int) -> None:
    if not minimum <= value < math.inf:
        raise ValueError(f"{name} is {value}; expected {minimum} or more")


_FEATURES = 5
_CHUNK = 1 << 20


def config_for(
    target: PreTrainedModel,
    num_layers: int,
    block_size: int,
    mask_token_id: int,
    *,
    hidden_layers: Sequence[int] = (),
    intermediate_size: int | None = None,
) -> BlockDrafterConfig:
    """Layers of the target's sizes, which read some of its layers.

    Args:
        target: a causal LM.
        num_layers: layers of the drafter.
        block_size: K.
        mask_token_id: a token that texts do not contain.
        hidden_layers: see `spread_layers` for the default.
        intermediate_size: None: the target's.
    """
    text = target.config.get_text_config()
    width, heads = int(text.hidden_size), int(text.num_attention_heads)
    inner = intermediate_size or getattr(text, "intermediate_size", None) or 4 * width
    return BlockDrafterConfig(
        hidden_size=width,
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(text, "head_dim", None) or width // heads),
        intermediate_size=int(inner),
        vocab_size=embedding_rows(target),
        target_hidden_size=width,
        hidden_layers=tuple(hidden_layers) or spread_layers(int(text.num_hidden_layers)),
        block_size=block_size,
        mask_token_id=mask_token_id,
    )


def embedding_rows(target: PreTrainedModel) -> int:
    """V, rows of the target's input embedding, which may be more than its tokenizer has tokens."""
    embedding: Any = target.get_input_embeddings()
    return len(embedding.weight)


def spread_layers(count: int) -> tuple[int, ...]:
    """The layers that are read of a target with `count`; see BlockJob.hidden_layers.

    The range from the second to the third to last is that of DFlash (arXiv 2602.06036).
    """
    if count < _FEATURES + 3:
        return tuple(sorted({0, count // 2, count - 1}))
    return tuple(round(float(layer)) for layer in np.linspace(1, count - 3, _FEATURES))


def find_unused_token(ids: Int32Array, vocab_size: int) -> int:
    """The largest token id that a text (N,) does not contain.

    Raises:
        ValueError: it contains all.
    """
    counts = np.zeros(vocab_size, dtype=np.int64)
    for start in range(0, len(ids), _CHUNK):
        counts += np.bincount(ids[start : start + _CHUNK], minlength=vocab_size)
    unused = np.flatnonzero(counts == 0)
    if not len(unused):
        raise ValueError(
            f"the text contains all {vocab_size:,} token ids; expected one that can be the mask of "
            "blocks; choose a rare one with mask_token_id (--mask-token-id)"
        )
    return int(unused[-1])


def add_gradients(
    drafter: BlockDrafter,
    target: PreTrainedModel,
    pieces: Pieces,
    weights: Tensor,
    distillation: float,
) -> Tensor:
    """Add the gradients of a weighted sum of losses to the .grad of the drafter.

    Args:
        drafter: attached to the target.
        target: frozen, in evaluation mode.
        pieces: of text, on the target's device.
        weights: (H,) float32, weight of one block's loss at each slot.
        distillation: see BlockTrainOptions.

    Returns:
        (H,) float32: cross entropies with the text, nats, summed over all blocks.
    """
    ids, anchors = pieces
    features, target_logits = read_features(
        target, ids, drafter.hidden_layers, with_logits=distillation > 0.0
    )
    states = drafter.train_states(features, ids, anchors)
    slots = drafter.num_slots
    positions = label_positions(anchors, slots)
    rows = states.detach().reshape(-1, states.shape[-1]).requires_grad_()
    labels = take_labels(ids, anchors, slots).flatten()
    row_weights = weights.repeat(len(rows) // slots)
    texts = torch.arange(len(ids), device=ids.device).repeat_interleave(positions[0].numel())
    before = positions.flatten() - 1  # the target's logits there predict the label
    losses = []
    size = chunk_rows(target_logits.shape[-1], rows.device)
    for part in (slice(start, start + size) for start in range(0, len(rows), size)):
        log_probs = drafter.logits(rows[part]).float().log_softmax(-1)
        loss = F.nll_loss(log_probs, labels[part], reduction="none")
        losses.append(loss.detach())
        if distillation > 0.0:
            probs = target_logits[texts[part], before[part]].float().softmax(-1)
            soft = -(probs * log_probs).sum(-1)
            loss = torch.lerp(loss, soft, distillation)
        (loss * row_weights[part]).sum().backward()  # type: ignore[no-untyped-call]
    assert rows.grad is not None
    states.backward(rows.grad.view_as(states))  # type: ignore[no-untyped-call]
    return torch.cat(losses).view(-1, slots).sum(0)


def take_labels(token_ids: Tensor, anchors: Tensor, num_slots: int) -> Tensor:
    """The H tokens after anchors (B, N) of texts (B, T), as (B, N, H)."""
    positions = label_positions(anchors, num_slots)
    return token_ids.gather(1, positions.flatten(1)).view(positions.shape)


def label_positions(anchors: Tensor, num_slots: int) -> Tensor:
    """The H positions after each anchor: (B, N, H)."""
    return anchors.unsqueeze(-1) + torch.arange(1, num_slots + 1, device=anchors.device)


_LENGTH = 256


class BlockTrainer(RunTrainer):
    """Trains a block drafter in place; the target is unchanged.

    Use it as a context manager: inside, the drafter is in training mode and the target in
    evaluation mode, without gradients; afterwards both are in evaluation mode.

    Args:
        drafter: attached to the target, without embeddings of its own.
        target: on any device.
        texts: training texts.
        options: see BlockTrainOptions.
        processes: the data-parallel processes, which pass the same arguments; batch_size must be
            a multiple of their number.
        where: the caller's name, for error messages.

    Attributes:
        length: the most tokens of a piece.
        report: progress.
        optimizers: Muon and AdamW.

    Raises:
        ValueError: options out of range, texts that do not fit, or a drafter with embeddings.
    """

    def __init__(
        self,
        drafter: BlockDrafter,
        target: PreTrainedModel,
        texts: BlockTexts,
        options: BlockTrainOptions,
        processes: Processes = ALONE,
        where: str = "BlockTrainer",
    ) -> None:
        options.check()
        config = drafter.config
        if config.has_own_embedding or config.has_own_output:
            raise ValueError(
                f"{where}: the drafter has embeddings of its own; expected one that uses the "
                "target's (has_own_embedding and has_own_output False)"
            )
        if options.batch_size % processes.world_size:
            raise ValueError(
                f"{where}: batch_size is {options.batch_size}; expected a multiple of the "
                f"{processes.world_size} processes"
            )
        self.length = piece_length(target, options.sequence_length)
        if self.length < texts.first_position + drafter.num_slots + 1:
            raise ValueError(
                f"{where}: sequence_length is {self.length}; expected "
                f"{texts.first_position + drafter.num_slots + 1} or more (first_position + "
                f"{drafter.num_slots} slots + 1)"
            )
        texts.check(drafter.num_slots, config.vocab_size or 0, where)
        self.drafter, self.target, self.texts = drafter, target, texts
        self.options, self.processes = options, processes
        weights = options.slot_weights(drafter.num_slots)
        self._weights = torch.tensor(weights, device=target.device)
        super().__init__(
            dict(drafter.named_parameters()),
            build_optimizers(drafter, options.matrix_lr, options.other_lr),
            TrainReport(0, options.steps, precision=options.precision),
            self._backward, options.warmup, options.clip, where=where, unit="slot",
        )  # fmt: skip

    def __enter__(self) -> BlockTrainer:
        self._trained = [w for w in self.target.parameters() if w.requires_grad]
        self.target.train(False).requires_grad_(False)
        self.drafter.train()
        return self

    def __exit__(self, *error: object) -> None:
        for weight in self._trained:
            weight.requires_grad_(True)
        self.drafter.zero_grad(set_to_none=True)
        self.drafter.eval()

    def _backward(self, _: int) -> dict[int, float]:
        """Cross entropy with the text of each slot, 1..H, and the gradients."""
        report, options = self.report, self.options
        blocks = options.batch_size * options.anchors
        bf16 = report.precision == "bf16"
        with torch.autocast(self.target.device.type, torch.bfloat16, enabled=bf16):
            sums = add_gradients(
                self.drafter, self.target, self._sample(), self._weights / blocks,
                options.distillation,
            )  # fmt: skip
        gradients = [weight.grad for weight in self.weights.values() if weight.grad is not None]
        self.processes.all_reduce([*gradients, sums])
        return dict(enumerate((sums / blocks).tolist(), 1))

    def _sample(self) -> Pieces:
        """This process's part of the next step."""
        options, rank = self.options, self.processes.rank
        pieces = self.texts.sample(
            self.length, options.batch_size, options.anchors, self.drafter.num_slots,
            options.seed, self.report.step,
        )  # fmt: skip
        share = options.batch_size // self.processes.world_size
        rows = slice(rank * share, (rank + 1) * share)
        return Pieces(*(part[rows].to(self.target.device) for part in pieces))


def piece_length(target: PreTrainedModel, sequence_length: int | None) -> int:
    """The most tokens of a piece: sequence_length, or 256 unless the target has fewer positions.

    Raises:
        ValueError: more than the target has positions for.
    """
    limit = find_max_positions(target.config.get_text_config()) or 1 << 30
    length = sequence_length or min(_LENGTH, limit)
    if length > limit:
        raise ValueError(
            f"sequence_length is {length}, the target has positions for {limit}; lower it"
        )
    return length
