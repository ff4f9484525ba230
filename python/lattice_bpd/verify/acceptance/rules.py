"""The lossy acceptance rules of the literature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from lattice_bpd.verify.acceptance.relaxed import (
    RelaxedAcceptance,
    check_count,
    check_number,
)
from lattice_bpd.verify.acceptance.rule import Exact
from lattice_bpd.verify.greedy import FloatRow
from lattice_bpd.verify.verification import DraftCandidates


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
class Distance(RelaxedAcceptance):
    """Accept a draft token near the target's argmax (Stern et al. 2018, section 5.2).

    For ordered tokens, such as pixel intensities: |a - b| <= epsilon.

    Args:
        epsilon: largest distance, 0 or more; 0 is the exact rule.
        values: (V,) the value of each token; None: its id.

    Raises:
        ValueError: epsilon is negative or no number, or values are no row of numbers.
    """

    epsilon: float
    values: npt.NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    name: ClassVar[str] = "distance"
    guarantee: ClassVar[str] = "every token is within epsilon of the target's argmax there"

    def __post_init__(self) -> None:
        check_number("Distance", "epsilon", self.epsilon, 0.0)
        if self.values is not None:
            object.__setattr__(self, "values", _value_row(self.values))

    def admits(self, row: FloatRow, best: int, token_ids: Sequence[int]) -> list[bool]:
        """See RelaxedAcceptance.

        Raises:
            ValueError: values are not as many as the logits.
        """
        if self.values is None:
            return [abs(token - best) <= self.epsilon for token in token_ids]
        if len(self.values) != len(row):
            raise ValueError(
                f"Distance: found {len(self.values)} values for {len(row)} logits; expected one "
                "for each token of the target's vocabulary"
            )
        near = np.abs(self.values[list(token_ids)] - self.values[best]) <= self.epsilon
        return near.tolist()  # type: ignore[no-any-return]


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


@dataclass(frozen=True)
class MinimumBlock(RelaxedAcceptance):
    """Output at least `length` tokens per call (Stern et al. 2018, section 5.3).

    A block includes its first token, which is the target's own, so a minimum of l forces the first
    l - 1 draft tokens of a call. Where the inner rule accepts none of the candidates, the first of
    them is forced; where drafts are shorter, so is the block.

    Args:
        length: tokens of a block, 1 or more; with 1 only the inner rule applies.
        rule: the inner rule, Exact or any relaxed rule.

    Raises:
        TypeError: length is not an int, or rule is another kind of object.
        ValueError: length is below 1.
    """

    length: int
    rule: RelaxedAcceptance | Exact = field(default_factory=Exact)
    name: ClassVar[str] = "minimum_block"
    guarantee: ClassVar[str] = (
        "every call outputs length tokens or more if its drafts are long enough; forced tokens "
        "have no guarantee, all others that of the inner rule"
    )

    def __post_init__(self) -> None:
        check_count("MinimumBlock", "length", self.length)
        rule: Any = self.rule
        if not isinstance(rule, (Exact, RelaxedAcceptance)):
            raise TypeError(
                f"MinimumBlock: rule is a {type(rule).__name__}; expected Exact or a relaxed rule, "
                "since forced tokens are neither samples nor argmax"
            )

    def admits(self, row: FloatRow, best: int, token_ids: Sequence[int]) -> Sequence[bool]:
        """See RelaxedAcceptance; the inner rule decides."""
        if isinstance(self.rule, Exact):
            return [False] * len(token_ids)
        return self.rule.admits(row, best, token_ids)

    def pick(self, row: FloatRow, best: int, candidates: DraftCandidates) -> int:
        """See RelaxedAcceptance."""
        token = best if isinstance(self.rule, Exact) else self.rule.pick(row, best, candidates)
        forced = candidates.depth + 1 < self.length and len(candidates.token_ids) > 0
        return candidates.token_ids[0] if forced and token not in candidates.token_ids else token

    def __str__(self) -> str:
        """See RelaxedAcceptance; the inner rule follows unless it is the exact one."""
        inner = "" if isinstance(self.rule, Exact) else f",{self.rule}"
        return f"{self.name}:{self.length}{inner}"


def among_best(row: FloatRow, token_ids: Sequence[int], count: int) -> set[int]:
    """The tokens that are among the top `count` by logit, then by smaller id."""
    best = set()
    for token in sorted(token_ids, key=lambda token: (-row[token], token)):
        ahead = np.count_nonzero(row > row[token]) + np.count_nonzero(row[:token] == row[token])
        if ahead >= count:
            break  # all following tokens rank lower
        best.add(token)
    return best


def _value_row(values: Any) -> npt.NDArray[np.float64]:
    row = np.asarray(values, np.float64)
    finite = bool(np.isfinite(row).all())
    if row.ndim != 1 or not finite:
        problem = f"shape {row.shape}" if finite else "NaN or infinity among them"
        raise ValueError(
            f"Distance: values have {problem}; expected (V,) finite numbers, one for each token"
        )
    return row
