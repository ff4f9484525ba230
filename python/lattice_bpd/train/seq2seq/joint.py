"""Training of encoder-decoders, and of blockwise heads on a frozen one.

The target is trained by teacher forcing with label smoothing; heads learn the tokens 2..h positions
after each hidden state of the decoder (Stern et al. 2018, section 6).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lattice_bpd.models.heads import BlockwiseHeads
from lattice_bpd.models.lm_call import call_forward
from lattice_bpd.train.heads.optimizers import build_optimizers, set_rates, take_step
from lattice_bpd.train.heads.options import TrainReport
from lattice_bpd.train.seq2seq.text import IGNORED, Pair, PairBatch, shuffled_batches
from lattice_bpd.verify.seq2seq_target import Seq2SeqTarget
from lattice_bpd.verify.target import TargetOutput

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
        seed: seed of the batches.
    """

    steps: int = 1000
    batch_size: int = 64
    matrix_lr: float = 0.02
    other_lr: float = 0.003
    warmup: int = 50
    label_smoothing: float = 0.0
    seed: int = 0

    def check(self, where: str) -> None:
        """Raises ValueError for numbers out of range."""
        if min(self.steps, self.batch_size) < 1 or not 0.0 <= self.label_smoothing < 1.0:
            raise ValueError(
                f"{where}: steps {self.steps}, batch_size {self.batch_size}, label_smoothing "
                f"{self.label_smoothing}; expected 1 or more, 1 or more, and 0 up to 1"
            )


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
        return run_steps(target.base, batches, losses, options, on_step, "train_seq2seq")
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
            heads, batches, lambda batch: _head_losses(target, heads, batch), options, on_step,
            "train_seq2seq_heads",
        )  # fmt: skip
    finally:
        heads.eval()
        for weight in trainable:
            weight.requires_grad_(True)


def read_pairs(target: Seq2SeqTarget, batch: PairBatch) -> tuple[TargetOutput, Tensor]:
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
    module: nn.Module,
    batches: Iterator[PairBatch],
    losses: Callable[[PairBatch], Tensor],
    options: Seq2SeqOptions,
    on_step: OnStep | None,
    where: str,
) -> TrainReport:
    """Trains the weights of `module` to minimize the mean of `losses(batch)`, (L,) nats."""
    optimizers = build_optimizers(module, options.matrix_lr, options.other_lr)
    report = TrainReport(0, options.steps)
    start = time.perf_counter()
    while report.step < report.steps:
        set_rates(optimizers, report.step, report.steps, options.warmup)
        values = losses(next(batches))
        take_step(optimizers, values.mean())
        report.count_step(values.detach(), start, where)
        if on_step is not None:
            on_step(report)
    return report


def _head_losses(target: Seq2SeqTarget, heads: BlockwiseHeads, batch: PairBatch) -> Tensor:
    """(H,) mean cross entropies of the tokens 2..h positions after each hidden state."""
    with torch.no_grad():
        hidden = read_pairs(target, batch)[0].hidden  # (B, T, D)
    slots = heads.num_slots
    labels = F.pad(batch.labels[:, 1:], (0, slots), value=IGNORED).to(target.device)
    targets = labels.unfold(1, slots, 1)[:, : hidden.shape[1]]  # (B, T, H)
    used = (targets != IGNORED).any(dim=-1) & (batch.labels != IGNORED).to(target.device)
    logits = target.embedding(heads(hidden[used]))  # (N, H, V)
    losses = F.cross_entropy(
        logits.flatten(0, 1), targets[used].flatten(), ignore_index=IGNORED, reduction="none"
    ).view(-1, slots)
    return losses.sum(dim=0) / (targets[used] != IGNORED).sum(dim=0).clamp(min=1)
