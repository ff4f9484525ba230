"""Where a decoding run stands between two calls of the target."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from transformers import Cache

from lattice_bpd.decode.statistics import DecodeStats
from lattice_bpd.models import BlockwiseLM


@dataclass
class DecodeState:
    """What a drafter sees.

    Attributes:
        model: the target with its heads.
        tokens: prompt and decoded tokens; the last one is the exact token y_{t+1}, which the
            target chose but has not read yet. This is the context of the lattice.
        prompt_length: tokens of the prompt among them.
        hidden: (D,) float, the hidden state that predicted y_{t+1}; heads start from it.
        cache: the target's KV cache over `tokens[:-1]`.
        num_slots: longest draft that may still be used, 0..H: the output limit and the target's
            positions cut it short near the end.
        stats: counts and stage times; time yours with `stats.stage(name)`.
    """

    model: BlockwiseLM
    tokens: list[int]
    prompt_length: int
    hidden: Tensor
    cache: Cache
    num_slots: int
    stats: DecodeStats

    def head_logits(self) -> Tensor:
        """Logits of the draft heads for the slots that may be used: (num_slots, V) float."""
        return self.model.head_logits(self.hidden)[: self.num_slots]
