"""What an acceptance rule is, and the exact one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from lattice_bpd.verify.verification import Chooser


class Acceptance(Protocol):
    """Which draft tokens are kept, and what is written where none is; write one to plug in yours.

    A rule is a value that many decodes may share; what changes from token to token lives in the
    choosers that it starts.

    Attributes:
        name: one word for tables.
        lossless: whether the output is what the target alone would have written: its greedy
            output, or, for a rule that samples, its distribution.
        guarantee: what holds of the output, in one sentence.
    """

    name: ClassVar[str]
    lossless: ClassVar[bool]
    guarantee: ClassVar[str]

    def start(self, sequence: int, prompt: Sequence[int]) -> Chooser | None:
        """The chooser of one text.

        Args:
            sequence: number of the text in its batch.
            prompt: its token ids.

        Returns:
            A new Chooser; None for argmax.
        """
        ...


class Exact:
    """Keep a draft token if and only if it is the target's argmax: the default."""

    name: ClassVar[str] = "exact"
    lossless: ClassVar[bool] = True
    guarantee: ClassVar[str] = "the target's greedy output, token for token"

    def start(self, sequence: int, prompt: Sequence[int]) -> None:  # noqa: ARG002
        """None: plain argmax, decided for all places at once."""
        return

    def __str__(self) -> str:
        """The form that `parse_acceptance` reads."""
        return self.name
