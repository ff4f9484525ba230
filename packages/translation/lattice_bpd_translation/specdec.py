"""Training of a SpecDrafter on a frozen encoder-decoder.

Each step samples several positions of every output, after which the drafter predicts H tokens.

    glancing  a first pass predicts with all slots masked; then a fraction of the wrong tokens of
              each block is revealed, and the others are learned       (Qian et al. 2021)
    masked    a random number of tokens of each block is revealed      (Ghazvininejad et al. 2019)

On outputs of the target (`generate_outputs`) this is the sequence-level distillation of Xia et al.
2022, section 4; `soft_weight` adds the target's distributions as further labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lattice_bpd.train.trainer import TrainReport
from lattice_bpd_translation.drafter import SpecDrafter
from lattice_bpd_translation.joint import OnStep, Seq2SeqOptions, read_pairs, run_steps
from lattice_bpd_translation.target import Seq2SeqTarget
from lattice_bpd_translation.text import IGNORED, Pair, PairBatch, shuffled_batches

OBJECTIVES = ("glancing", "masked")


@dataclass(frozen=True)
class SpecDrafterOptions(Seq2SeqOptions):
    """Options of training a drafter; see also Seq2SeqOptions.

    Attributes:
        objective: "glancing" or "masked".
        reveal: glancing: fraction of the errors that is revealed, decaying to 0 at the last step;
            masked: largest fraction of a block that is revealed. 0: nothing is revealed.
        blocks: blocks sampled per output and step.
        soft_weight: weight of the target's distributions, 0..1; tokens weigh 1 - soft_weight.
    """

    objective: str = "glancing"
    reveal: float = 0.3
    blocks: int = 6
    soft_weight: float = 0.0

    def check(self, where: str) -> None:
        """See Seq2SeqOptions."""
        super().check(where)
        if self.objective not in OBJECTIVES:
            raise ValueError(
                f"{where}: objective is {self.objective!r}; expected one of {', '.join(OBJECTIVES)}"
            )
        if not (0.0 <= self.reveal <= 1.0 and 0.0 <= self.soft_weight <= 1.0 and self.blocks >= 1):
            raise ValueError(
                f"{where}: reveal {self.reveal}, soft_weight {self.soft_weight}, blocks "
                f"{self.blocks}; expected 0..1, 0..1, and 1 or more"
            )


@dataclass(frozen=True)
class BlockBatch:
    """The blocks of one step.

    Attributes:
        source: (B, S, D) float, the target's encoder states, or (B, S) int64.
        mask: (B, S) int64, 0 for padding.
        tokens: (B, T) int64, decoder prompts and outputs.
        starts: (B, N) int64, the last prefix token of each block.
        hidden: (B, N, D) float, the target's states that predicted those; None if not needed.
        labels: (B, N, H) int64, IGNORED after the end.
        soft: (B, N, H, V) float, the target's log probabilities; None if not needed.
    """

    source: Tensor
    mask: Tensor
    tokens: Tensor
    starts: Tensor
    hidden: Tensor | None
    labels: Tensor
    soft: Tensor | None


def train_spec_drafter(
    target: Seq2SeqTarget,
    drafter: SpecDrafter,
    pairs: Sequence[Pair],
    options: SpecDrafterOptions | None = None,
    on_step: OnStep | None = None,
) -> TrainReport:
    """Trains a drafter in place; the target is unchanged.

    Args:
        target: a model in evaluation mode, with its decoder prompt.
        drafter: with the target's vocabulary; left in evaluation mode.
        pairs: sources and outputs, ideally outputs of the target itself.
        options: see SpecDrafterOptions.
        on_step: called after every step.

    Returns:
        The report of the last step; its losses are those of slots 1..H, nats per token.

    Raises:
        ValueError: options out of range, widths or a vocabulary other than the target's, no or
            empty pairs, or a loss that is not finite.
    """
    options = options or SpecDrafterOptions()
    options.check("train_spec_drafter")
    if drafter.config.vocab_size != target.vocab_size:
        raise ValueError(
            f"train_spec_drafter: the drafter has a vocabulary of {drafter.config.vocab_size}, the "
            f"target one of {target.vocab_size}; expected the same"
        )
    generator = torch.Generator().manual_seed(options.seed)
    batches = shuffled_batches(pairs, target.decoder_prompt, options.batch_size, options.seed)
    step = 0

    def losses(batch: PairBatch) -> Tensor:
        nonlocal step
        blocks = sample_blocks(target, drafter, batch, options, generator)
        fraction = options.reveal * (1.0 - step / options.steps)
        revealed = reveal_tokens(drafter, blocks, options.objective, fraction, generator)
        step += 1
        return block_losses(drafter, blocks, revealed, options)

    drafter.train()
    try:
        parts = [(drafter, 1.0)]
        return run_steps(parts, batches, losses, options, on_step, "train_spec_drafter")
    finally:
        drafter.eval()


@torch.no_grad()
def sample_blocks(
    target: Seq2SeqTarget,
    drafter: SpecDrafter,
    batch: PairBatch,
    options: SpecDrafterOptions,
    generator: torch.Generator,
) -> BlockBatch:
    """Samples positions of the outputs, with the target's states or predictions there."""
    config, device = drafter.config, target.device
    prompt, slots = len(target.decoder_prompt), drafter.num_slots
    sizes = (batch.labels != IGNORED).sum(dim=1)  # tokens of the outputs
    uniform = torch.rand(len(batch), options.blocks, generator=generator, device="cpu")
    # The prefix of a block ends with the first output token (which the first call of the target
    # produces) at the earliest, and with the last but one at the latest.
    starts = (prompt + (uniform * (sizes[:, None] - 1)).long()).to(device)
    tokens = batch.tokens.to(device)
    labels = F.pad(batch.labels, (0, slots), value=IGNORED).to(device)
    positions = starts.unsqueeze(-1) + torch.arange(slots, device=device)  # of labels
    block_labels = labels[:, None].expand(-1, options.blocks, -1).gather(2, positions)
    source, mask = batch.source.to(device), batch.source_mask.to(device)
    hidden = soft = None
    if config.state_size or config.source_size or options.soft_weight:
        output, states = read_pairs(target, batch)
        if config.source_size:
            source = states
        if config.state_size:
            index = (starts - 1).unsqueeze(-1).expand(-1, -1, output.hidden.shape[-1])
            hidden = output.hidden.gather(1, index)
        if options.soft_weight:
            near = positions.clamp(max=output.logits.shape[1] - 1)
            rows = torch.arange(len(batch), device=near.device)[:, None, None]
            soft = output.logits[rows, near].log_softmax(-1)
    return BlockBatch(source, mask, tokens, starts, hidden, block_labels, soft)


@torch.no_grad()
def reveal_tokens(
    drafter: SpecDrafter,
    batch: BlockBatch,
    objective: str,
    fraction: float,
    generator: torch.Generator,
) -> Tensor | None:
    """The revealed tokens of the blocks: (B, N, H) int64, -1 where masked; None: none.

    Args:
        drafter: makes the first predictions of "glancing".
        batch: with labels.
        objective: see SpecDrafterOptions.
        fraction: of the errors, or the maximum of the block.
        generator: random numbers.
    """
    if fraction <= 0.0:
        return None
    labels = batch.labels
    known = labels != IGNORED
    order = torch.rand(labels.shape, generator=generator, device="cpu").to(labels.device)
    if objective == "glancing":
        predicted = block_logits(drafter, batch, None).argmax(dim=-1)
        errors = ((predicted != labels) & known).sum(dim=-1)  # (B, N)
        count = (errors * fraction).round()
    else:
        rates = torch.rand(labels.shape[:2], generator=generator, device="cpu") * fraction
        rates = rates.to(labels.device)
        count = (known.sum(dim=-1) * rates).round()
    rank = order.masked_fill(~known, 2.0).argsort(dim=-1).argsort(dim=-1)
    revealed = (rank < count.unsqueeze(-1)) & known
    return torch.where(revealed, labels, -1)


def block_logits(drafter: SpecDrafter, batch: BlockBatch, revealed: Tensor | None) -> Tensor:
    """(B, N, H, V) logits."""
    source = drafter.read_source(batch.source, batch.mask)
    logits: Tensor = drafter(source, batch.mask, batch.tokens, batch.starts, batch.hidden, revealed)
    return logits


def block_losses(
    drafter: SpecDrafter, batch: BlockBatch, revealed: Tensor | None, options: SpecDrafterOptions
) -> Tensor:
    """(H,) mean losses of the tokens that were not revealed."""
    logits = block_logits(drafter, batch, revealed)
    learned = batch.labels != IGNORED
    if revealed is not None:
        learned = learned & (revealed < 0)
    labels = torch.where(learned, batch.labels, IGNORED)
    losses = F.cross_entropy(
        logits.flatten(0, 2), labels.flatten(), ignore_index=IGNORED, reduction="none",
        label_smoothing=options.label_smoothing,
    ).view(labels.shape)  # fmt: skip
    if batch.soft is not None:
        divergence = F.kl_div(
            logits.log_softmax(dim=-1), batch.soft, reduction="none", log_target=True
        ).sum(dim=-1)
        weight = options.soft_weight
        losses = (1.0 - weight) * losses + weight * divergence * learned
    counts = learned.sum(dim=(0, 1)).clamp(min=1)
    return losses.sum(dim=(0, 1)) / counts
