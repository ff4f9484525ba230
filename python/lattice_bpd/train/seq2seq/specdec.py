"""Training a SpecDrafter on a frozen encoder-decoder.

Each step draws several places of every output; behind each the drafter guesses the next H tokens.

    glancing  a first pass guesses with all slots masked; then, of each block, as many tokens as a
              share of its errors are told, and the rest is learned    (Qian et al. 2021)
    masked    a number of tokens drawn anew for each block is told     (Ghazvininejad et al. 2019)

With outputs that the target wrote (`write_outputs`) this is the sequence-level distillation of Xia
et al. 2022, section 4; `soft_weight` adds the target's own distributions as further labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lattice_bpd.models.spec_drafter import SpecDrafter
from lattice_bpd.train.heads.options import TrainReport
from lattice_bpd.train.seq2seq.joint import OnStep, Seq2SeqOptions, read_pairs, run_steps
from lattice_bpd.train.seq2seq.text import IGNORED, Pair, PairBatch, draw_batches
from lattice_bpd.verify.seq2seq_target import Seq2SeqTarget

OBJECTIVES = ("glancing", "masked")


@dataclass(frozen=True)
class SpecDrafterOptions(Seq2SeqOptions):
    """How to train a drafter; what is not listed here is as in Seq2SeqOptions.

    Attributes:
        objective: "glancing" or "masked".
        reveal: share of the errors that glancing tells at first, falling to 0 at the last step; of
            "masked" the largest share of a block that is told. 0: nothing is ever told.
        blocks: places of each output that are learned from in a step.
        soft_weight: weight of the target's distributions, 0..1; the rest is that of the tokens.
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
    """What a step learns from.

    Attributes:
        source: (B, S, D) float, the target's encoder states, or (B, S) int64.
        mask: (B, S) int64, 0 for padding.
        tokens: (B, T) int64, decoder prompts and outputs.
        starts: (B, N) int64, the last prefix token of each block.
        hidden: (B, N, D) float, the target's states that predicted those; None where not read.
        labels: (B, N, H) int64, IGNORED behind the end.
        soft: (B, N, H, V) float, the target's log probabilities; None where not asked for.
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
    """Train a drafter in place; the target stays as it is.

    Args:
        target: a model in evaluation mode, with its decoder prompt.
        drafter: of the target's vocabulary, left in evaluation mode.
        pairs: sources and outputs, best those that the target wrote.
        options: see SpecDrafterOptions.
        on_step: called after every step.

    Returns:
        TrainReport of the last step; its losses are those of slots 1..H, nats a token.

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
    batches = draw_batches(pairs, target.decoder_prompt, options.batch_size, options.seed)
    done = 0

    def losses(batch: PairBatch) -> Tensor:
        nonlocal done
        found = read_blocks(target, drafter, batch, options, generator)
        share = options.reveal * (1.0 - done / options.steps)
        told = reveal_tokens(drafter, found, options.objective, share, generator)
        done += 1
        return block_losses(drafter, found, told, options)

    drafter.train()
    try:
        return run_steps(drafter, batches, losses, options, on_step, "train_spec_drafter")
    finally:
        drafter.eval()


@torch.no_grad()
def read_blocks(
    target: Seq2SeqTarget,
    drafter: SpecDrafter,
    batch: PairBatch,
    options: SpecDrafterOptions,
    generator: torch.Generator,
) -> BlockBatch:
    """Draw places of the outputs, and what the target says there."""
    config, device = drafter.config, target.device
    prompt, slots = len(target.decoder_prompt), drafter.num_slots
    sizes = (batch.labels != IGNORED).sum(dim=1)  # tokens of the outputs
    drawn = torch.rand(len(batch), options.blocks, generator=generator)
    # The prefix of a block ends with the first output token at the earliest, since the first
    # call of the target gives that one, and with the last but one at the latest.
    starts = (prompt + (drawn * (sizes[:, None] - 1)).long()).to(device)
    tokens = batch.tokens.to(device)
    labels = F.pad(batch.labels, (0, slots), value=IGNORED).to(device)
    places = starts.unsqueeze(-1) + torch.arange(slots, device=device)  # of labels
    wanted = labels[:, None].expand(-1, options.blocks, -1).gather(2, places)
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
            near = places.clamp(max=output.logits.shape[1] - 1)
            soft = output.logits[torch.arange(len(batch))[:, None, None], near].log_softmax(-1)
    return BlockBatch(source, mask, tokens, starts, hidden, wanted, soft)


@torch.no_grad()
def reveal_tokens(
    drafter: SpecDrafter,
    batch: BlockBatch,
    objective: str,
    share: float,
    generator: torch.Generator,
) -> Tensor | None:
    """Which tokens of the blocks are told: (B, N, H) int64, -1 where masked; None: none.

    Args:
        drafter: guesses for "glancing".
        batch: with labels.
        objective: see SpecDrafterOptions.
        share: of the errors, or the largest of the block.
        generator: of the draws.
    """
    if share <= 0.0:
        return None
    labels = batch.labels
    known = labels != IGNORED
    order = torch.rand(labels.shape, generator=generator).to(labels.device)
    if objective == "glancing":
        guess = guess_blocks(drafter, batch, None).argmax(dim=-1)
        errors = ((guess != labels) & known).sum(dim=-1)  # (B, N)
        count = (errors * share).round()
    else:
        rates = torch.rand(labels.shape[:2], generator=generator).to(labels.device) * share
        count = (known.sum(dim=-1) * rates).round()
    rank = order.masked_fill(~known, 2.0).argsort(dim=-1).argsort(dim=-1)
    told = (rank < count.unsqueeze(-1)) & known
    return torch.where(told, labels, -1)


def guess_blocks(drafter: SpecDrafter, batch: BlockBatch, told: Tensor | None) -> Tensor:
    """(B, N, H, V) logits."""
    source = drafter.read_source(batch.source, batch.mask)
    logits: Tensor = drafter(source, batch.mask, batch.tokens, batch.starts, batch.hidden, told)
    return logits


def block_losses(
    drafter: SpecDrafter, batch: BlockBatch, told: Tensor | None, options: SpecDrafterOptions
) -> Tensor:
    """(H,) mean losses of the tokens that were not told."""
    logits = guess_blocks(drafter, batch, told)
    learned = batch.labels != IGNORED
    if told is not None:
        learned = learned & (told < 0)
    labels = torch.where(learned, batch.labels, IGNORED)
    found = F.cross_entropy(
        logits.flatten(0, 2), labels.flatten(), ignore_index=IGNORED, reduction="none",
        label_smoothing=options.label_smoothing,
    ).view(labels.shape)  # fmt: skip
    if batch.soft is not None:
        apart = F.kl_div(
            logits.log_softmax(dim=-1), batch.soft, reduction="none", log_target=True
        ).sum(dim=-1)
        weight = options.soft_weight
        found = (1.0 - weight) * found + weight * apart * learned
    counts = learned.sum(dim=(0, 1)).clamp(min=1)
    return found.sum(dim=(0, 1)) / counts
