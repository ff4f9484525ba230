"""Where a decoding run stands between two calls of the target."""

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
    """What a drafter sees of one sequence.

    Attributes:
        model: the target with its heads.
        tokens: prompt and decoded tokens; the last one is the exact token y_{t+1}, which the
            target chose but has not read yet. This is the context of the lattice.
        prompt_length: tokens of the prompt among them.
        hidden: (D,) float, the hidden state that predicted y_{t+1}; heads start from it.
        limit: most tokens to decode.
        stats: counts and stage times; time yours with `stats.stage(name)`.
        num_slots: longest draft of the heads that may still be used: the heads and `room` bound it.
        room: longest draft of any kind that may still be used: the output limit and the target's
            positions bound it.
        finish: why the text ended; None while it goes on.
        chooser: of the acceptance rule, which drafters of a kind may ask; None for argmax.
        constrained: where the text stands in its constraint; None where it has none.
        source: of an encoder-decoder the encoded source, one row; else None.
        memory: what heads that see states keep of this sequence.
    """

    model: DraftingModel
    tokens: list[int]
    prompt_length: int
    hidden: Tensor
    limit: int
    stats: DecodeStats
    num_slots: int = 0
    room: int = 0
    finish: str | None = None
    chooser: Chooser | None = None
    constrained: ConstrainedChooser | None = None
    source: Source | None = None
    memory: Any = None

    @property
    def new_tokens(self) -> list[int]:
        """The decoded tokens."""
        return self.tokens[self.prompt_length :]

    def head_logits(self) -> Tensor:
        """Logits of the draft heads for the slots that may be used: (num_slots, V) float."""
        with self.stats.stage("heads"):
            return self.model.state_logits([self])[0, : self.num_slots]

    def update_num_slots(self) -> None:
        """Bound drafts by output limit and positions, those of heads by the heads as well."""
        model, length = self.model, len(self.tokens)
        room = self.limit - (length - self.prompt_length) - 1
        if model.max_positions is not None and model.max_positions - length < room:
            room = model.max_positions - length
        self.room = room if room > 0 else 0
        heads = model.num_slots
        self.num_slots = heads if heads is not None and heads < self.room else self.room
