"""Heads on a hidden state with a trained selector: a lattice with transition scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.models.block_drafter.module import BlockDrafter
from lattice_bpd.models.block_drafter.selector import CandidateSelector
from lattice_bpd.models.blockwise import BlockwiseLM

if TYPE_CHECKING:
    from lattice_bpd.decode.state.sequence import DecodeState


class SelectorHeads:
    """DraftHeads: heads on the target's last hidden state, then a selector.

    A BlockwiseLM that has a selector decodes with these by itself.

    Args:
        model: the target with BlockwiseHeads, Medusa's or another head source.
        selector: trained on them; moved to the target's device.

    Raises:
        ValueError: a BlockDrafter, or a selector of another vocabulary, width or number of slots.
    """

    def __init__(self, model: BlockwiseLM, selector: CandidateSelector) -> None:
        if isinstance(model.heads, BlockDrafter):
            raise ValueError(
                "SelectorHeads: the heads are a BlockDrafter; expected heads on one hidden state; "
                "call drafter.use_selector(selector)"
            )
        width = int(model.output_embedding.weight.shape[1])
        selector.check_fit(model.vocab_size, width, model.num_slots, "SelectorHeads")
        self.num_slots: int | None = model.num_slots
        self.selector = selector.to(model.device).eval()
        self._model = model

    @torch.no_grad()
    def read_states(self, states: Sequence[DecodeState]) -> LatticeInput:
        """See DraftHeads."""
        hidden = torch.stack([state.hidden for state in states])
        exact = torch.tensor([state.tokens[-1] for state in states], device=hidden.device)
        logits = self._model.head_logits(hidden, exact)
        return self.selector.lattice_of_heads(logits, hidden, exact)
