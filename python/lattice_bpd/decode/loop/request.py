"""One text to decode, and what is known of its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.verify.greedy import TokenSelector
from lattice_bpd.verify.row_buffers import LayerParts


class Start(NamedTuple):
    """Tokens that were read, the first ones of a text or all of it.

    Attributes:
        tokens: T ints.
        row: of the cache, which has their keys and values.
        saved: a copy of them instead, of each layer; None: there is none.
    """

    tokens: list[int]
    row: int = 0
    saved: list[LayerParts] | None = None


@dataclass(eq=False)
class Request:
    """One text to decode.

    Attributes:
        state: its tokens, limits and statistics, which drafters read.
        drafter: of its drafts.
        selector: selects its tokens; None: argmax. All texts of an engine have one, or none has.
        limited_by_positions: whether its limit is the target's positions.
        number: of its prompt.
        start: first tokens of it that were read before, with a copy of their keys and values.
        hidden: (n, D) float each, the hidden states that predicted its tokens, where they are kept.
    """

    state: DecodeState
    drafter: Drafter
    selector: TokenSelector | None = None
    limited_by_positions: bool = False
    number: int = 0
    start: Start | None = None
    hidden: list[Tensor] = field(default_factory=list)
