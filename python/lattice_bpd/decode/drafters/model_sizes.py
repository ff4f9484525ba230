"""The sizes of the model that a drafter was tuned for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lattice_bpd.decode.state.model import DraftingModel


@dataclass(frozen=True)
class ModelSizes:
    """Sizes that a model must have; the attribute `model_sizes` of a drafter.

    Attributes:
        vocab_size: V of the target.
        num_slots: H of the heads; fewer are allowed.
        source: where the sizes are from, for error messages.
    """

    vocab_size: int
    num_slots: int
    source: str

    def check(self, model: DraftingModel) -> None:
        """Raise ValueError for a target of another vocabulary, or with more slots."""
        if model.vocab_size != self.vocab_size or (model.num_slots or 0) > self.num_slots:
            raise ValueError(
                f"decode: the target has a vocabulary of {model.vocab_size} and "
                f"{model.num_slots or 0} slots, {self.source} is for {self.vocab_size} and "
                f"{self.num_slots}; tune for this model: lattice-bpd tune"
            )
