"""The interface of acceptance rules, and the exact rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from lattice_bpd.verify.verification import TokenSelector


class Acceptance(Protocol):
    """Decides which draft tokens are accepted, and the next token where none is.

    Rules are immutable and may be shared; the state of a text is in the selector from `start`.

    Attributes:
        name: one word for tables.
        lossless: whether the output is the target's own: its greedy output or, for sampling rules,
            a sample of its distribution.
        guarantee: what the rule guarantees of the output, in one sentence.
    """

    name: ClassVar[str]

    @property
    def lossless(self) -> bool:
        """See the class."""
        ...

    @property
    def guarantee(self) -> str:
        """See the class."""
        ...

    def start(self, sequence: int, prompt: Sequence[int]) -> TokenSelector | None:
        """The token selector of one text.

        Args:
            sequence: index of the text in its batch.
            prompt: its token ids.

        Returns:
            A new TokenSelector; None for argmax.
        """
        ...


class Exact:
    """Accept a draft token if and only if it is the target's argmax: the default."""

    name: ClassVar[str] = "exact"
    lossless: ClassVar[bool] = True
    guarantee: ClassVar[str] = "the target's greedy output, token for token"

    def start(self, sequence: int, prompt: Sequence[int]) -> None:  # noqa: ARG002
        """None: argmax, computed for all positions at once."""
        return

    def __str__(self) -> str:
        """The name, as `parse_acceptance` reads it."""
        return self.name
