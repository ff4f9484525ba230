"""Training a low-rank selector on frozen heads or a frozen block drafter.

Teacher forcing: the row of the text's own previous token is a distribution over the k candidates,
and its cross entropy with the text's next token is minimized; slots whose token is not among the
candidates are left out. The successor codebook starts at 0, so that training starts at the heads.

Source: third parties' reconstructions of DFlash2's training (Automodel, speculators, SpecForge).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import AdamW
from transformers import PreTrainedModel

from lattice_bpd.models.block_drafter.candidates import SlotCandidates
from lattice_bpd.models.block_drafter.scorer_config import SelectorConfig
from lattice_bpd.models.block_drafter.selector import CandidateSelector
from lattice_bpd.train.heads.batches import mix_seed
from lattice_bpd.train.heads.optimizers import set_rates
from lattice_bpd.train.selector.options import SelectorOptions
from lattice_bpd.train.selector.pieces import Blocks, Pieces
from lattice_bpd.train.selector.slots import AnyHeads, SlotReader, slots_of
from lattice_bpd.train.selector.validation import ScoreCounter, SelectorScores
from lattice_bpd.watcher import SilentWatcher, Watcher

_VALIDATION_PIECES = 128  # at most


@dataclass(frozen=True)
class TrainedSelector:
    """What `train_selector` returns.

    Attributes:
        selector: on the target's device, in evaluation mode.
        losses: of each step, nats per slot.
        scores: on the held-out texts.
    """

    selector: CandidateSelector
    losses: list[float]
    scores: SelectorScores


def train_selector(
    target: PreTrainedModel,
    heads: AnyHeads,
    texts: Sequence[npt.ArrayLike],
    options: SelectorOptions | None = None,
    watcher: Watcher | None = None,
) -> TrainedSelector:
    """Trains transition scores; target and heads are unchanged.

    The result is used by `SelectorHeads(BlockwiseLM(target, heads=heads), selector)`, or for a
    block drafter by `drafter.use_selector(selector)`.

    Args:
        target: a causal LM, on any device.
        heads: BlockwiseHeads, Medusa's or another head source, or a BlockDrafter, on that device.
        texts: token ids (T,) each, two texts or more; best are texts that the target generated.
        options: see SelectorOptions.
        watcher: receives the progress.

    Raises:
        TypeError: heads of another kind.
        ValueError: texts or options out of range, or a loss that is not finite.
    """
    options, watcher = options or SelectorOptions(), watcher or SilentWatcher()
    options.check()
    slots = slots_of(target, heads)
    if options.top_k > slots.vocab_size:
        raise ValueError(
            f"train_selector: top_k is {options.top_k}; expected 1..{slots.vocab_size}"
        )
    pieces = Pieces(texts, options, slots.vocab_size)
    modules = [target, *([heads] if isinstance(heads, torch.nn.Module) else [])]
    modes = [(module, module.training) for module in modules]
    for module in modules:
        module.eval()
    try:
        selector = _new_selector(slots, options).to(target.device)
        losses = _train(selector, slots, pieces, options, watcher)
        return TrainedSelector(
            selector.eval(), losses, _validate(selector, slots, pieces, options, watcher)
        )
    finally:
        for module, mode in modes:
            module.train(mode)


def _new_selector(slots: SlotReader, options: SelectorOptions) -> CandidateSelector:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        return CandidateSelector(
            SelectorConfig(options.rank, options.top_k), slots.vocab_size, slots.state_size,
            num_slots=slots.slot_gates,
        )  # fmt: skip


def _train(
    selector: CandidateSelector,
    slots: SlotReader,
    pieces: Pieces,
    options: SelectorOptions,
    watcher: Watcher,
) -> list[float]:
    """The losses of all steps."""
    optimizer = AdamW(
        selector.parameters(), options.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    optimizer.param_groups[0]["peak_lr"] = options.learning_rate
    gamma = (slots.num_slots + 1) / 2 if options.decay is None else options.decay
    device = next(selector.parameters()).device
    weights = torch.exp(-torch.arange(slots.num_slots, device=device) / gamma)
    losses = []
    watcher.begin("training the selector", options.steps)
    for step in range(options.steps):
        generator = torch.Generator().manual_seed(mix_seed(options.seed, step))
        count = len(pieces.training)
        which = torch.randint(count, (options.batch_size,), generator=generator).tolist()
        blocks = pieces.sample(which, slots.num_slots, generator, held_out=False)
        candidates, previous, labels = _read(slots, blocks, options.top_k, device)
        set_rates([optimizer], step, options.steps, options.warmup)
        loss = _loss(selector.row_scores(candidates, previous), candidates, labels, weights)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(selector.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
        if losses[-1] != losses[-1]:
            raise ValueError(
                f"train_selector: the loss of step {step + 1} is not a number; lower learning_rate"
            )
        watcher.advance(note=f"loss {losses[-1]:.3f}")
    watcher.end()
    return losses


def _loss(scores: Tensor, slots: SlotCandidates, labels: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean cross entropy of rows (N, H, k) over slots whose label is a candidate."""
    is_label = slots.token_ids == labels.unsqueeze(-1)
    shares = weights * is_label.any(dim=-1)
    nats = F.cross_entropy(
        scores.flatten(0, 1), is_label.int().argmax(dim=-1).flatten(), reduction="none"
    )
    return (nats.view(shares.shape) * shares).sum() / shares.sum().clamp_min(1e-9)


def _read(
    slots: SlotReader, blocks: Blocks, top_k: int, device: torch.device
) -> tuple[SlotCandidates, Tensor, Tensor]:
    """Candidates, previous tokens (N, H) and labels (N, H) of all blocks, on the device."""
    ids, anchors, previous, labels = (part.to(device) for part in blocks)
    return slots.read(ids, anchors, top_k), previous.flatten(0, 1), labels.flatten(0, 1)


def _validate(
    selector: CandidateSelector,
    slots: SlotReader,
    pieces: Pieces,
    options: SelectorOptions,
    watcher: Watcher,
) -> SelectorScores:
    counter, device = ScoreCounter(selector), next(selector.parameters()).device
    generator = torch.Generator().manual_seed(options.seed)
    which = range(min(len(pieces.validation), _VALIDATION_PIECES))
    batches = [which[n : n + options.batch_size] for n in range(0, len(which), options.batch_size)]
    watcher.begin("validation of the selector", len(batches))
    for batch in batches:
        blocks = pieces.sample(batch, slots.num_slots, generator, held_out=True)
        counter.add(*_read(slots, blocks, options.top_k, device))
        watcher.advance()
    watcher.end()
    return counter.scores()
