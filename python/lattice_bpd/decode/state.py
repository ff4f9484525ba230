"""Where a decoding run stands between two calls of the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lattice_bpd.decode.model import DraftingModel
from lattice_bpd.decode.statistics import DecodeStats
from lattice_bpd.verify import Chooser, Source


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
        num_slots: longest draft that may still be used: the heads, the output limit and the
            target's positions bound it.
        finish: why the text ended; None while it goes on.
        chooser: of the acceptance rule, which drafters of a kind may ask; None for argmax.
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
    finish: str | None = None
    chooser: Chooser | None = None
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
        """Bound drafts by heads, output limit and positions."""
        slots = self.limit - (len(self.tokens) - self.prompt_length) - 1
        if self.model.num_slots is not None:
            slots = min(slots, self.model.num_slots)
        if self.model.max_positions is not None:
            slots = min(slots, self.model.max_positions - len(self.tokens))
        self.num_slots = max(slots, 0)
