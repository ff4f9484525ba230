"""Training of encoder-decoders, of blockwise heads on a frozen one, and of both together.

The target is trained by teacher forcing with label smoothing; heads learn the tokens 2..h positions
after each hidden state of the decoder (Stern et al. 2018, section 6). Both together are trained
from scratch (`joint`) or from a trained target (`finetune`, with a smaller rate for the target).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lattice_bpd.models.forward import LMOutput, call_forward
from lattice_bpd.models.heads import BlockwiseHeads
from lattice_bpd.train.trainer import Trainer, TrainReport
from lattice_bpd_kim2024.heads.optimizers import build_optimizers
from lattice_bpd_translation.target import Seq2SeqTarget
from lattice_bpd_translation.text import IGNORED, Pair, PairBatch, shuffled_batches

OnStep = Callable[[TrainReport], None]


@dataclass(frozen=True)
class Seq2SeqOptions:
    """Options of training on pairs.

    Attributes:
        steps: optimizer steps.
        batch_size: pairs per step.
        matrix_lr: Muon's learning rate, for matrices.
        other_lr: AdamW's, for embeddings, norms and biases.
        warmup: steps of linear warm-up; then a cosine down to 5 %.
        label_smoothing: probability mass spread over the vocabulary.
        seed: seed of the batches and heads.
        base_rate: training with heads: factor on the learning rates of the target's weights.
        one_head: training with heads: one randomly sampled head per step, whose loss is an unbiased
            estimate of the mean over all heads.
    """

    steps: int = 1000
    batch_size: int = 64
    matrix_lr: float = 0.02
    other_lr: float = 0.003
    warmup: int = 50
    label_smoothing: float = 0.0
    seed: int = 0
    base_rate: float = 1.0
    one_head: bool = False

    def check(self, where: str) -> None:
        """Raises ValueError for numbers out of range."""
        if min(self.steps, self.batch_size) < 1 or not 0.0 <= self.label_smoothing < 1.0:
            raise ValueError(
                f"{where}: steps {self.steps}, batch_size {self.batch_size}, label_smoothing "
                f"{self.label_smoothing}; expected 1 or more, 1 or more, and 0 up to 1"
            )
        if not 0.0 <= self.base_rate < math.inf:
            raise ValueError(f"{where}: base_rate is {self.base_rate}; expected 0 or more")


def train_seq2seq(
    target: Seq2SeqTarget,
    pairs: Sequence[Pair],
    options: Seq2SeqOptions | None = None,
    on_step: OnStep | None = None,
) -> TrainReport:
    """Trains an encoder-decoder in place; it is left in evaluation mode.

    Args:
        target: the model with its decoder prompt.
        pairs: sources and outputs.
        options: see Seq2SeqOptions.
        on_step: called after every step.

    Returns:
        The report of the last step; its loss is in nats per token.

    Raises:
        ValueError: options out of range, no or empty pairs, or a loss that is not finite.
    """
    options = options or Seq2SeqOptions()
    options.check("train_seq2seq")
    target.base.train()

    def losses(batch: PairBatch) -> Tensor:
        logits = read_pairs(target, batch)[0].logits
        labels = batch.labels.to(target.device)
        return F.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED,
            label_smoothing=options.label_smoothing,
        )[None]  # fmt: skip

    batches = shuffled_batches(pairs, target.decoder_prompt, options.batch_size, options.seed)
    try:
        parts = [(target.base, 1.0)]
        return run_steps(parts, batches, losses, options, on_step, "train_seq2seq")
    finally:
        target.base.eval()


def train_seq2seq_heads(
    target: Seq2SeqTarget,
    heads: BlockwiseHeads,
    pairs: Sequence[Pair],
    options: Seq2SeqOptions | None = None,
    on_step: OnStep | None = None,
) -> TrainReport:
    """Trains blockwise heads on a frozen encoder-decoder, in place.

    Args:
        target: the target, which is unchanged.
        heads: heads of the decoder's hidden size.
        pairs: sources and outputs, ideally outputs of the target itself.
        options: see Seq2SeqOptions; its label_smoothing is not used.
        on_step: called after every step.

    Returns:
        The report of the last step; its losses are those of heads 2..h, nats per token.

    Raises:
        ValueError: options out of range, no or empty pairs, or a loss that is not finite.
    """
    options = options or Seq2SeqOptions()
    options.check("train_seq2seq_heads")
    heads.train()
    batches = shuffled_batches(pairs, target.decoder_prompt, options.batch_size, options.seed)
    trainable = [weight for weight in target.base.parameters() if weight.requires_grad]
    target.base.requires_grad_(False)  # no gradients of the output embedding
    try:
        return run_steps(
            [(heads, 1.0)], batches, lambda batch: _frozen_losses(target, heads, batch), options,
            on_step, "train_seq2seq_heads",
        )  # fmt: skip
    finally:
        heads.eval()
        for weight in trainable:
            weight.requires_grad_(True)


def train_seq2seq_jointly(
    target: Seq2SeqTarget,
    heads: BlockwiseHeads,
    pairs: Sequence[Pair],
    options: Seq2SeqOptions | None = None,
    on_step: OnStep | None = None,
) -> TrainReport:
    """Trains an encoder-decoder and blockwise heads together, in place.

    The loss is the mean of the cross entropies of heads 1..h (Stern et al. 2018, section 6), head 1
    being the target's own. A trained target is finetuned; its outputs change.

    Args:
        target: the model with its decoder prompt.
        heads: heads of the decoder's hidden size.
        pairs: sources and outputs; outputs of a beam search of a teacher are distillation.
        options: see Seq2SeqOptions.
        on_step: called after every step.

    Returns:
        The report of the last step; its losses are those of heads 1..h, or with one_head that of
        the sampled head, nats per token.

    Raises:
        ValueError: options out of range, no or empty pairs, or a loss that is not finite.
    """
    options = options or Seq2SeqOptions()
    options.check("train_seq2seq_jointly")
    generator = torch.Generator().manual_seed(options.seed)
    target.base.train()
    heads.train()

    def losses(batch: PairBatch) -> Tensor:
        output = read_pairs(target, batch)[0]
        chosen = list(range(heads.num_heads))
        if options.one_head:
            chosen = [int(torch.randint(heads.num_heads, (), generator=generator, device="cpu"))]
        labels = batch.labels.to(target.device)
        found = []
        if chosen[0] == 0:
            found.append(
                F.cross_entropy(
                    output.logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED,
                    label_smoothing=options.label_smoothing,
                )[None]
            )  # fmt: skip
        if slots := [head - 1 for head in chosen if head > 0]:
            smoothing = options.label_smoothing
            found.append(_head_losses(target, heads, batch, output.hidden, slots, smoothing))
        return torch.cat(found)

    batches = shuffled_batches(pairs, target.decoder_prompt, options.batch_size, options.seed)
    parts = [(heads, 1.0), (target.base, options.base_rate)]
    try:
        return run_steps(parts, batches, losses, options, on_step, "train_seq2seq_jointly")
    finally:
        target.base.eval()
        heads.eval()


def read_pairs(target: Seq2SeqTarget, batch: PairBatch) -> tuple[LMOutput, Tensor]:
    """One forward pass of encoder and decoder.

    Returns:
        Its logits (B, T, V) and hidden states (B, T, D), and the encoder's states (B, S, D).
    """
    source, mask = batch.source.to(target.device), batch.source_mask.to(target.device)
    encoded: Any = target.encoder(input_ids=source, attention_mask=mask)
    inputs = {
        "encoder_outputs": encoded,
        "attention_mask": mask,
        "decoder_input_ids": batch.tokens.to(target.device),
        "use_cache": False,
    }
    states: Tensor = encoded.last_hidden_state
    return call_forward(target.base, target.embedding, inputs), states


def run_steps(
    parts: Sequence[tuple[nn.Module, float]],
    batches: Iterator[PairBatch],
    losses: Callable[[PairBatch], Tensor],
    options: Seq2SeqOptions,
    on_step: OnStep | None,
    where: str,
) -> TrainReport:
    """Trains modules, each with a factor on its rates, to minimize the mean of (L,) losses."""
    optimizers = [
        optimizer
        for module, rate in parts
        for optimizer in build_optimizers(module, rate * options.matrix_lr, rate * options.other_lr)
    ]

    def backward(_: int) -> dict[int, float]:
        values = losses(next(batches))
        values.mean().backward()  # type: ignore[no-untyped-call]
        return dict(enumerate(values.tolist(), 1))

    report = TrainReport(0, options.steps)
    trainer = Trainer({}, optimizers, report, backward, options.warmup, where=where)
    trainer.run(on_step=None if on_step is None else lambda _: on_step(report))
    return report


def _frozen_losses(target: Seq2SeqTarget, heads: BlockwiseHeads, batch: PairBatch) -> Tensor:
    """(H,) losses of all draft heads on the hidden states of a target that is not trained."""
    with torch.no_grad():
        hidden = read_pairs(target, batch)[0].hidden  # (B, T, D)
    return _head_losses(target, heads, batch, hidden, list(range(heads.num_slots)))


def _head_losses(
    target: Seq2SeqTarget,
    heads: BlockwiseHeads,
    batch: PairBatch,
    hidden: Tensor,
    slots: list[int],
    label_smoothing: float = 0.0,
) -> Tensor:
    """(S,) mean cross entropies of slots' tokens, 2..h positions after states (B, T, D)."""
    count = heads.num_slots
    labels = F.pad(batch.labels[:, 1:], (0, count), value=IGNORED).to(target.device)
    targets = labels.unfold(1, count, 1)[:, : hidden.shape[1], slots]  # (B, T, S)
    used = (targets != IGNORED).any(dim=-1) & (batch.labels != IGNORED).to(target.device)
    logits = target.embedding(heads(hidden[used], slots))  # (N, S, V)
    losses = F.cross_entropy(
        logits.flatten(0, 1), targets[used].flatten(), ignore_index=IGNORED, reduction="none",
        label_smoothing=label_smoothing,
    ).view(-1, len(slots))  # fmt: skip
    return losses.sum(dim=0) / (targets[used] != IGNORED).sum(dim=0).clamp(min=1)
