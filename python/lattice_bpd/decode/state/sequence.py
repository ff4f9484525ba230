"""The state of one sequence between two calls of the target."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lattice_bpd.decode.state.constraint import ConstrainedText
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.decode.state.statistics import DecodeStats
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.verify.greedy import Predictions, TokenSelector


@dataclass(eq=False)
class DecodeState:
    """The state of one sequence, which drafters read.

    Attributes:
        model: the target with its heads.
        tokens: prompt and decoded tokens. The last one is the exact token y_{t+1}, which the target
            has selected but not read yet. They are the context of the lattice.
        prompt_length: number of prompt tokens among them.
        hidden: (D,) float, the hidden state that predicted y_{t+1}; the input of the heads. None
            before the first call of a text whose last prompt token is y_{t+1}.
        limit: most tokens to decode.
        stats: counts and stage times; a drafter can time its own with `stats.stage(name)`.
        num_slots: longest draft of the heads in this step: the smaller of their number of slots and
            max_draft_length.
        max_draft_length: longest draft of any drafter in this step, limited by the output limit,
            the target's positions and what one call of it may contain.
        is_chain: whether only a single draft is verified.
        finish: finish reason; None while the text is not finished.
        selector: of the acceptance rule, for drafters that share its random numbers; None: argmax.
        constrained: selects the tokens under a constraint; None: no constraint.
        source: encoded source of an encoder-decoder, one row; else None.
        memory: data that draft heads keep for this sequence.
        features: (m, F) float each, of tokens that the heads have not taken yet; see
            `take_features`.
        candidates: of the heads after y_{t+1}; None: its call did not compute them.
        predictions: the target's, with the number of tokens when it made them; a drafter that reads
            them (`num_predictions`) empties the list.
    """

    model: DraftingModel
    tokens: list[int]
    prompt_length: int
    hidden: Any
    limit: int
    stats: DecodeStats
    candidates: LatticeInput | None = None
    num_slots: int = 0
    max_draft_length: int = 0
    is_chain: bool = False
    finish: str | None = None
    selector: TokenSelector | None = None
    constrained: ConstrainedText | None = None
    source: Any = None
    memory: Any = None
    features: list[Tensor] = field(default_factory=list)
    predictions: list[tuple[int, Predictions]] = field(default_factory=list)

    @property
    def new_tokens(self) -> list[int]:
        """The decoded tokens."""
        return self.tokens[self.prompt_length :]

    def take_features(self) -> Tensor:
        """The target's hidden states of the tokens that it has read since the last call.

        Returns:
            (m, F) float, the concatenated outputs of `DraftHeads.hidden_layers`; row 0 belongs to
            the token after the last row of the previous call, and the last row to `tokens[-2]`,
            since the target has not read `tokens[-1]` yet.
        """
        taken = self.features[0] if len(self.features) == 1 else torch.cat(self.features)
        self.features = []
        return taken

    def update_limits(self) -> None:
        """Compute max_draft_length and num_slots for the next step."""
        model, length = self.model, len(self.tokens)
        longest = self.limit - (length - self.prompt_length) - 1
        if model.max_positions is not None and model.max_positions - length < longest:
            longest = model.max_positions - length
        limits = model.target.limits
        if limits.boundaries or limits.capacity is not None:
            of_call = limits.max_draft_length(length - 1 + model.target.shift)
            if of_call is not None and of_call < longest:
                longest = of_call
        self.max_draft_length = longest if longest > 0 else 0
        slots = model.num_slots
        self.num_slots = slots if slots is not None and slots < longest else self.max_draft_length
