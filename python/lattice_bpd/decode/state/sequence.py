"""The state of one sequence between two calls of the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lattice_bpd.decode.constraint.chooser import ConstrainedChooser
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.decode.state.statistics import DecodeStats
from lattice_bpd.verify.source_cache import Source
from lattice_bpd.verify.verification import Chooser


@dataclass
class DecodeState:
    """The state of one sequence, which drafters read.

    Attributes:
        model: the target with its heads.
        tokens: prompt and decoded tokens. The last one is the exact token y_{t+1}, which the target
            has selected but not read yet. They are the context of the lattice.
        prompt_length: number of prompt tokens among them.
        hidden: (D,) float, the hidden state that predicted y_{t+1}; the input of the heads.
        limit: most tokens to decode.
        stats: counts and stage times; a drafter can time its own with `stats.stage(name)`.
        num_slots: longest draft of the heads in this step: the smaller of their number of slots and
            max_draft_length.
        max_draft_length: longest draft of any drafter in this step, limited by the output limit
            and the target's positions.
        finish: finish reason; None while the text is not finished.
        chooser: of the acceptance rule, for drafters that share its random numbers; None: argmax.
        constrained: chooser with the automaton state of the constraint; None: no constraint.
        source: encoded source of an encoder-decoder, one row; else None.
        memory: data that StateHeads store for this sequence.
    """

    model: DraftingModel
    tokens: list[int]
    prompt_length: int
    hidden: Tensor
    limit: int
    stats: DecodeStats
    num_slots: int = 0
    max_draft_length: int = 0
    finish: str | None = None
    chooser: Chooser | None = None
    constrained: ConstrainedChooser | None = None
    source: Source | None = None
    memory: Any = None

    @property
    def new_tokens(self) -> list[int]:
        """The decoded tokens."""
        return self.tokens[self.prompt_length :]

    def update_limits(self) -> None:
        """Compute max_draft_length and num_slots for the next step."""
        model, length = self.model, len(self.tokens)
        longest = self.limit - (length - self.prompt_length) - 1
        if model.max_positions is not None and model.max_positions - length < longest:
            longest = model.max_positions - length
        self.max_draft_length = longest if longest > 0 else 0
        slots = model.num_slots
        self.num_slots = slots if slots is not None and slots < longest else self.max_draft_length
