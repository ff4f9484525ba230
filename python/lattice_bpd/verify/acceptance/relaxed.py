"""The base class of lossy acceptance rules, and its token selector.

A rule defines only which draft tokens it admits. Where it admits none, and after the end of a
draft, the output is the target's argmax, as under the exact rule.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from lattice_bpd.verify.greedy import FloatRow, greedy_token, logits_row
from lattice_bpd.verify.verification import DraftCandidates


class RelaxedAcceptance(ABC):
    """A rule that accepts some draft tokens that are not the target's argmax; subclass it.

    Attributes:
        name: see `Acceptance`.
        lossless: False.
        guarantee: what the rule guarantees of the output, in one sentence.
    """

    name: ClassVar[str]
    lossless: ClassVar[bool] = False
    guarantee: ClassVar[str]

    @abstractmethod
    def admits(self, row: FloatRow, best: int, token_ids: Sequence[int]) -> Sequence[bool]:
        """Which draft tokens may replace the target's argmax.

        Args:
            row: (V,) float32, the target's logits.
            best: its argmax.
            token_ids: (n,) draft tokens, n at least 1, none of them the argmax.

        Returns:
            (n,) bools.
        """

    def pick(self, row: FloatRow, best: int, candidates: DraftCandidates) -> int:
        """The next token of the output.

        The argmax if it is a candidate, else the admitted candidate with the largest logit (the
        first of several), else the argmax.
        """
        token_ids = candidates.token_ids
        if not token_ids or best in token_ids:
            return best
        passing = self.admits(row, best, token_ids)
        admitted = [token for token, passes in zip(token_ids, passing, strict=True) if passes]
        return max(admitted, key=row.__getitem__, default=best)

    def start(self, sequence: int, prompt: Sequence[int]) -> RelaxedSelector:  # noqa: ARG002
        """The token selector of one text."""
        return RelaxedSelector(self)

    def __str__(self) -> str:
        """Name and numbers as `parse_acceptance` reads them: specdec++:3,1.0."""
        values = [getattr(self, field.name) for field in fields(self) if field.repr]  # type: ignore[arg-type]
        return f"{self.name}:{','.join(map(str, values))}"


class RelaxedSelector:
    """Selects the tokens of one text by a relaxed rule, and records their regret.

    Args:
        rule: decides which tokens are admitted.

    Attributes:
        ended: False; the decoding loop handles stop tokens.
        regrets: (index, regret) of each selected token that is not the target's argmax: its index
            among the selected tokens, and by how many nats it is less likely than the argmax.
    """

    ended = False

    def __init__(self, rule: RelaxedAcceptance) -> None:
        self._rule, self._chosen = rule, 0
        self.regrets: list[tuple[int, float]] = []

    def choose(self, logits: Tensor, candidates: DraftCandidates) -> int:
        """See `lattice_bpd.verify.verification.TokenSelector`.

        Raises:
            ValueError: a NaN among the logits.
        """
        row = logits_row(logits)
        best = greedy_token(row)
        token = self._rule.pick(row, best, candidates)
        if token != best:
            self.regrets.append((self._chosen, float(row[best]) - float(row[token])))
        self._chosen += 1
        return token


def check_count(rule: str, name: str, value: Any) -> None:
    """Raise TypeError or ValueError unless value is an int of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{rule}: {name} is {value!r}; expected an int")
    if value < 1:
        raise ValueError(f"{rule}: {name} is {value}; expected 1 or more")


def check_number(rule: str, name: str, value: Any, least: float) -> None:
    """Raise TypeError or ValueError unless value is a finite number, least or more."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f"{rule}: {name} is {value!r}; expected a number")
    if not least <= value < math.inf:
        raise ValueError(f"{rule}: {name} is {value}; expected a finite number, {least:g} or more")
