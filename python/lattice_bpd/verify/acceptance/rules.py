"""The lossy acceptance rules of the literature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice_bpd.verify.acceptance.relaxed import (
    RelaxedAcceptance,
    check_count,
    check_number,
)
from lattice_bpd.verify.greedy import FloatRow


@dataclass(frozen=True)
class TopKMatch(RelaxedAcceptance):
    """Accept a draft token among the target's top k (Stern et al. 2018, section 5.1).

    Args:
        k: 1 or more; 1 is the exact rule. Equal logits rank by the smaller token id.

    Raises:
        TypeError: k is not an int.
        ValueError: k is below 1.
    """

    k: int
    name: ClassVar[str] = "top_k"
    guarantee: ClassVar[str] = "every token is among the target's top k given the tokens before it"

    def __post_init__(self) -> None:
        check_count("TopKMatch", "k", self.k)

    def admits(self, row: FloatRow, best: int, token_ids: Sequence[int]) -> list[bool]:  # noqa: ARG002
        """See RelaxedAcceptance."""
        passing = among_best(row, token_ids, self.k)
        return [token in passing for token in token_ids]


@dataclass(frozen=True)
class SpecDecPlusPlus(RelaxedAcceptance):
    """Accept a likely draft token among the target's top beta (Xia et al. 2023, SpecDec++).

    Args:
        top_beta: largest rank among the target's tokens, 1 or more; 1 is the exact rule.
        tau: largest difference in nats to the log probability of the argmax, 0 or more.

    Raises:
        TypeError: top_beta is not an int.
        ValueError: top_beta is below 1, or tau is negative or no number.
    """

    top_beta: int = 3
    tau: float = 1.0
    name: ClassVar[str] = "specdec++"
    guarantee: ClassVar[str] = (
        "every token is among the target's top_beta given the tokens before it, and at most tau "
        "nats less likely than the argmax"
    )

    def __post_init__(self) -> None:
        check_count("SpecDecPlusPlus", "top_beta", self.top_beta)
        check_number("SpecDecPlusPlus", "tau", self.tau, 0.0)

    def admits(self, row: FloatRow, best: int, token_ids: Sequence[int]) -> list[bool]:
        """See RelaxedAcceptance."""
        least = float(row[best]) - self.tau
        likely = [token for token in token_ids if float(row[token]) >= least]
        passing = among_best(row, likely, self.top_beta)
        return [token in passing for token in token_ids]


@dataclass(frozen=True)
class Typical(RelaxedAcceptance):
    """Accept a draft token with probability p > min(epsilon, delta exp(-entropy)).

    Typical acceptance of Medusa (Cai et al. 2024, section 2.3.1): the higher the target's entropy,
    the more tokens are accepted. It accepts what sampling at temperature 1 might generate. But it
    does not sample: rejected tokens are replaced by the argmax, so the output is neither greedy
    nor a sample of the target's distribution.

    Args:
        epsilon: probability that suffices at any entropy, above 0 and below 1.
        delta: factor of exp(-entropy), above 0 and below 1; Medusa uses the square root of epsilon.

    Raises:
        ValueError: epsilon or delta out of range.
    """

    epsilon: float = 0.09
    delta: float = 0.3
    name: ClassVar[str] = "typical"
    guarantee: ClassVar[str] = (
        "every token is the target's argmax or has a probability above min(epsilon, delta "
        "exp(-entropy)) given the tokens before it"
    )

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            value = getattr(self, name)
            check_number("Typical", name, value, 0.0)
            if not 0.0 < value < 1.0:
                raise ValueError(f"Typical: {name} is {value}; expected above 0 and below 1")

    def admits(self, row: FloatRow, best: int, token_ids: Sequence[int]) -> list[bool]:
        """See RelaxedAcceptance."""
        shifted = np.maximum(row - row[best], np.float32(-1e4))  # 0 * -inf is NaN
        parts = np.exp(shifted)
        total = float(parts.sum(dtype=np.float64))
        probs = [float(parts[token]) / total for token in token_ids]
        if all(prob > self.epsilon for prob in probs):
            return [True] * len(probs)
        entropy = math.log(total) - float(np.dot(parts, shifted)) / total
        least = min(self.epsilon, self.delta * math.exp(-entropy))
        return [prob > least for prob in probs]


def among_best(row: FloatRow, token_ids: Sequence[int], count: int) -> set[int]:
    """The tokens that are among the top `count` by logit, then by smaller id."""
    best = set()
    for token in sorted(token_ids, key=lambda token: (-row[token], token)):
        ahead = np.count_nonzero(row > row[token]) + np.count_nonzero(row[:token] == row[token])
        if ahead >= count:
            break  # all following tokens rank lower
        best.add(token)
    return best
