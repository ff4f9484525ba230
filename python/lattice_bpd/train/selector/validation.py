"""Accuracy and accept length with and without a selector, on held-out blocks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from lattice_bpd.models.block_drafter.candidates import SlotCandidates, greedy_walk
from lattice_bpd.models.block_drafter.selector import CandidateSelector


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
        self._lengths = torch.zeros(3, dtype=torch.float64)  # blocks, before, after

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
