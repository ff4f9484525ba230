"""The trainer of selectors, and scores of a selector on held-out blocks.

Teacher forcing: the row of the text's own previous token is a distribution over the k candidates,
and its cross entropy with the text's next token is minimized; slots whose token is not among the
candidates are left out. The successor codebook starts at 0, so that training starts at the heads.

Source: third parties' reconstructions of DFlash2's training (Automodel, speculators, SpecForge).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW
from transformers import PreTrainedModel

from lattice_bpd.train.trainer import TrainReport
from lattice_bpd.watcher import Watcher
from lattice_bpd_drafters.block_training import piece_length
from lattice_bpd_drafters.config import SelectorConfig
from lattice_bpd_drafters.selector import CandidateSelector, SlotCandidates, greedy_walk
from lattice_bpd_drafters.selector_texts import AnyHeads, Blocks, Pieces, SelectorOptions, slots_of
from lattice_bpd_kim2024.heads.loop import RunTrainer
from lattice_bpd_kim2024.heads.options import mix_seed
from lattice_bpd_kim2024.heads.trainer import seeded

_VALIDATION_PIECES = 128  # at most


class SelectorTrainer(RunTrainer):
    """Trains a new selector for frozen heads or a frozen block drafter.

    Use it as a context manager: inside, target and heads are in evaluation mode; afterwards in
    their modes before.

    Args:
        target: a causal LM, on any device.
        heads: BlockwiseHeads, Medusa's or another head source, or a BlockDrafter, on that device.
        texts: token ids (T,) each.
        options: see SelectorOptions.
        validation: held-out texts, or none; None: a part of `texts`.

    Attributes:
        selector: on the target's device.
        report: progress; its losses are the weighted mean that is minimized.
        optimizers: AdamW.

    Raises:
        TypeError: heads of another kind.
        ValueError: texts or options out of range.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        heads: AnyHeads,
        texts: Sequence[npt.ArrayLike],
        options: SelectorOptions,
        validation: Sequence[npt.ArrayLike] | None = None,
    ) -> None:
        options.check()
        self.slots, self.options = slots_of(target, heads), options
        if options.top_k > self.slots.vocab_size:
            raise ValueError(
                f"train_selector: top_k is {options.top_k}; expected 1..{self.slots.vocab_size}"
            )
        length = piece_length(target, options.sequence_length)
        self.pieces = Pieces(texts, options, length, self.slots.vocab_size, validation)
        with seeded(options.seed):
            self.selector = CandidateSelector(
                SelectorConfig(options.rank, options.top_k), self.slots.vocab_size,
                self.slots.state_size, num_slots=self.slots.slot_gates,
            )  # fmt: skip
        self.selector.to(target.device)
        optimizer = AdamW(
            self.selector.parameters(), options.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )
        super().__init__(
            dict(self.selector.named_parameters()), [optimizer], TrainReport(0, options.steps),
            self._backward, options.warmup, clip=1.0, where="train_selector", unit="slot",
        )  # fmt: skip
        gamma = (self.slots.num_slots + 1) / 2 if options.gamma is None else options.gamma
        self._device = target.device
        self._weights = torch.exp(-torch.arange(self.slots.num_slots, device=self._device) / gamma)
        self._frozen: list[nn.Module] = [target]
        self._frozen += [heads] if isinstance(heads, nn.Module) else []

    def __enter__(self) -> SelectorTrainer:
        self._modes = [module.training for module in self._frozen]
        for module in self._frozen:
            module.train(False)
        self.selector.train()
        return self

    def __exit__(self, *error: object) -> None:
        for module, mode in zip(self._frozen, self._modes, strict=True):
            module.train(mode)
        self.selector.zero_grad(set_to_none=True)
        self.selector.eval()

    def take_step(self) -> dict[int, float]:
        """Runs one step.

        Returns:
            Cross entropy of each slot, 1..H, in nats per token; of slots with labels among their
            candidates.

        Raises:
            ValueError: a loss that is not finite.
        """
        losses = super().take_step()
        self.report.losses = [self._loss]
        return losses

    def _backward(self, step: int) -> dict[int, float]:
        options = self.options
        generator = torch.Generator().manual_seed(mix_seed(options.seed, step))
        count = len(self.pieces.training)
        which = torch.randint(
            count, (options.batch_size,), generator=generator, device="cpu"
        ).tolist()
        blocks = self.pieces.sample(which, self.slots.num_slots, generator, held_out=False)
        candidates, previous, labels = self.read(blocks)
        nats, covered = cross_entropies(
            self.selector.row_scores(candidates, previous), candidates, labels
        )
        loss = weighted_mean(nats, self._weights * covered)
        loss.backward()  # type: ignore[no-untyped-call]
        self._loss = float(loss.detach())
        sums = (nats.detach() * covered).sum(dim=0).tolist()
        counts = covered.sum(dim=0).tolist()
        pairs = enumerate(zip(sums, counts, strict=True), 1)
        return {slot: total / number for slot, (total, number) in pairs if number}

    def read(self, blocks: Blocks) -> tuple[SlotCandidates, Tensor, Tensor]:
        """Candidates, previous tokens (N, H) and labels (N, H) of all blocks, on the device."""
        ids, anchors, previous, labels = (part.to(self._device) for part in blocks)
        slots = self.slots.read(ids, anchors, self.options.top_k)
        return slots, previous.flatten(0, 1), labels.flatten(0, 1)

    def validate(self, watcher: Watcher) -> SelectorScores:
        """Scores on held-out texts, always the same blocks of them."""
        was_training, size = self.selector.training, self.options.batch_size
        counter = ScoreCounter(self.selector.eval())
        generator = torch.Generator().manual_seed(self.options.seed)
        which = range(min(len(self.pieces.validation), _VALIDATION_PIECES))
        batches = [which[start : start + size] for start in range(0, len(which), size)]
        watcher.begin("validation of the selector", len(batches))
        for batch in batches:
            blocks = self.pieces.sample(batch, self.slots.num_slots, generator, held_out=True)
            counter.add(*self.read(blocks))
            watcher.advance()
        watcher.end()
        self.selector.train(was_training)
        return counter.scores()


def cross_entropies(scores: Tensor, slots: SlotCandidates, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropies of rows with labels.

    Args:
        scores: (N, H, k) float32 rows.
        slots: their candidates.
        labels: (N, H) int64; -1: none.

    Returns:
        (N, H) float32 nats, and (N, H) bool, whether the label is a candidate; without meaning
        where it is not.
    """
    is_label = slots.token_ids == labels.unsqueeze(-1)
    nats = F.cross_entropy(
        scores.flatten(0, 1), is_label.int().argmax(dim=-1).flatten(), reduction="none"
    )
    return nats.view(labels.shape), is_label.any(dim=-1)


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """The mean with weights of 0 or more of the same shape; 0 if all are 0."""
    return (values * weights).sum() / weights.sum().clamp_min(1e-9)


@dataclass(frozen=True)
class SelectorScores:
    """Scores on held-out blocks, against the text.

    Attributes:
        coverage: H fractions of labels among the k candidates.
        accuracy_before: H top-1 accuracies of the heads alone.
        accuracy: H top-1 accuracies after the true previous token.
        accept_length_before: mean number of leading slots whose best candidate is the label.
        accept_length: the same for the greedy walk over the selector's rows.
        blocks: blocks with all H labels, of which the accept lengths are means.
    """

    coverage: tuple[float, ...]
    accuracy_before: tuple[float, ...]
    accuracy: tuple[float, ...]
    accept_length_before: float
    accept_length: float
    blocks: int

    def for_log(self) -> dict[str, Any]:
        """For the loss log."""
        return asdict(self)

    @classmethod
    def from_log(cls, scores: dict[str, Any]) -> SelectorScores:
        """What `for_log` returned, read from JSON."""
        fields: dict[str, Any] = {
            name: tuple(x) if isinstance(x, list) else x for name, x in scores.items()
        }
        return cls(**fields)


class ScoreCounter:
    """Adds up the scores of batches.

    Args:
        selector: in evaluation.
    """

    def __init__(self, selector: CandidateSelector) -> None:
        self._selector = selector
        self._sums: Tensor | None = None  # (4, H) float64: labels, covered, before, after
        self._lengths = torch.zeros(3, dtype=torch.float64, device="cpu")  # blocks, before, after

    @torch.no_grad()
    def add(self, slots: SlotCandidates, previous: Tensor, labels: Tensor) -> None:
        """Count N blocks with previous tokens and labels (N, H) int64; label -1: none."""
        ids, is_label = slots.token_ids, labels >= 0
        rows = self._selector.row_scores(slots, previous)
        after = ids.gather(2, rows.argmax(dim=-1, keepdim=True)).squeeze(2)
        covered = (ids == labels.unsqueeze(-1)).any(dim=-1)
        counts = (is_label, covered, ids[..., 0] == labels, after == labels)
        sums = torch.stack([part.sum(dim=0) for part in counts]).double().cpu()
        self._sums = sums if self._sums is None else self._sums + sums
        whole = is_label.all(dim=1)
        lattice = self._selector(slots)
        path = greedy_walk(lattice.start, lattice.transitions).unsqueeze(-1)
        walked = ids.gather(2, path).squeeze(2)
        lengths = [_leading(tokens == labels)[whole].sum() for tokens in (ids[..., 0], walked)]
        self._lengths += torch.stack([whole.sum(), *lengths]).double().cpu()

    def scores(self) -> SelectorScores:
        """The scores of all blocks that were added, one or more."""
        assert self._sums is not None
        labels, *counts = self._sums
        fractions = [tuple((part / labels.clamp_min(1)).tolist()) for part in counts]
        blocks, before, after = self._lengths.tolist()
        most = max(blocks, 1.0)
        return SelectorScores(
            fractions[0], fractions[1], fractions[2], before / most, after / most, int(blocks)
        )


def _leading(equal: Tensor) -> Tensor:
    """(N,) int64: leading True values of rows (N, H)."""
    return equal.long().cumprod(dim=1).sum(dim=1)
