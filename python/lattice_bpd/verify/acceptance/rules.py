"""The lossy rules of the papers, a few lines each."""

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
from lattice_bpd.verify.verification import Offer


@dataclass(frozen=True)
class TopKMatch(RelaxedAcceptance):
    """Keep a draft token that is among the target's k best (Stern et al. 2018, section 5.1).

    Args:
        k: how many, 1 or more; 1 is the exact rule. Equal logits rank by the smaller token id.

    Raises:
        TypeError: k is not an int.
        ValueError: k is below 1.
    """

    k: int
    name: ClassVar[str] = "top_k"
    guarantee: ClassVar[str] = "every token is among the target's k best behind those before it"

    def __post_init__(self) -> None:
        check_count("TopKMatch", "k", self.k)

    def admits(self, row: FloatRow, best: int, token_ids: Sequence[int]) -> list[bool]:  # noqa: ARG002
        """See RelaxedAcceptance."""
        passing = among_best(row, token_ids, self.k)
        return [token in passing for token in token_ids]


@dataclass(frozen=True)
class Distance(RelaxedAcceptance):
    """Keep a draft token near the target's argmax, for tokens that have an order, such as pixel
    intensities (Stern et al. 2018, section 5.2: |a - b| <= epsilon).

    Args:
        epsilon: largest distance, 0 or more; 0 is the exact rule.
        values: (V,) what each token stands for; None: its id.

    Raises:
        ValueError: epsilon is negative or no number, or values are no row of numbers.
    """  # noqa: D205

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
    """Keep a draft token that the target ranks and likes well enough (Xia et al. 2023, SpecDec++).

    Args:
        top_beta: it must be among as many of the target's best, 1 or more; 1 is the exact rule.
        tau: and at most as many nats less likely than its best, 0 or more.

    Raises:
        TypeError: top_beta is not an int.
        ValueError: top_beta is below 1, or tau is negative or no number.
    """

    top_beta: int = 3
    tau: float = 1.0
    name: ClassVar[str] = "specdec++"
    guarantee: ClassVar[str] = (
        "every token is among the target's top_beta best behind those before it, and at most tau "
        "nats less likely than its best"
    )

    def __post_init__(self) -> None:
        check_count("SpecDecPlusPlus", "top_beta", self.top_beta)
        check_number("SpecDecPlusPlus", "tau", self.tau, 0.0)

    def admits(self, row: FloatRow, best: int, token_ids: Sequence[int]) -> list[bool]:
        """See RelaxedAcceptance."""
        least = float(row[best]) - self.tau
        liked = [token for token in token_ids if float(row[token]) >= least]
        passing = among_best(row, liked, self.top_beta)
        return [token in passing for token in token_ids]


@dataclass(frozen=True)
class Typical(RelaxedAcceptance):
    """Keep a draft token that is not improbable there: p > min(epsilon, delta exp(-entropy)).

    Cai et al. 2024 (Medusa), section 2.3.1: the less sure the target, the more passes. Made for
    plausible text rather than for a given one: a draft token that sampling at temperature 1 could
    well have drawn is kept. Nothing is drawn here, and what is not kept is argmax: beside greedy
    decoding it is a looser match, beside sampling it is no sample of the target's distribution.

    Args:
        epsilon: a probability that is enough at any entropy, above 0 and below 1.
        delta: share of exp(-entropy) that is enough too, above 0 and below 1; Medusa takes the
            square root of epsilon.

    Raises:
        ValueError: epsilon or delta out of range.
    """

    epsilon: float = 0.09
    delta: float = 0.3
    name: ClassVar[str] = "typical"
    guarantee: ClassVar[str] = (
        "every token is the target's argmax or has a probability above min(epsilon, delta "
        "exp(-entropy)) behind those before it"
    )

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            value = getattr(self, name)
            check_number("Typical", name, value, 0.0)
            if not 0.0 < value < 1.0:
                raise ValueError(f"Typical: {name} is {value}; expected above 0 and below 1")

    def admits(self, row: FloatRow, best: int, token_ids: Sequence[int]) -> list[bool]:
        """See RelaxedAcceptance."""
        shifted = np.maximum(row - row[best], np.float32(-1e4))  # 0 * -inf is no number
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
    """Write at least some tokens in each call, whatever the target thinks of them.

    Stern et al. 2018, section 5.3: a block counts its first token, which is the target's own, so
    that a minimum of l forces the first l - 1 draft tokens of a call. Up to there, what the other
    rule does not keep is replaced by the first draft that is offered; where drafts are shorter,
    so is the block.

    Args:
        length: tokens of a block, 1 or more; 1 leaves the other rule as it is.
        rule: Exact, or any rule of this kind; which tokens are kept beyond the forced ones, and
            rather than those that would be forced.

    Raises:
        TypeError: length is not an int, or rule is of another kind.
        ValueError: length is below 1.
    """

    length: int
    rule: RelaxedAcceptance | Exact = field(default_factory=Exact)
    name: ClassVar[str] = "minimum_block"
    guarantee: ClassVar[str] = (
        "every call writes length tokens or more as far as the drafts behind them reach; nothing "
        "is promised of the forced ones, and the others are those of the rule beneath"
    )

    def __post_init__(self) -> None:
        check_count("MinimumBlock", "length", self.length)
        rule: Any = self.rule
        if not isinstance(rule, (Exact, RelaxedAcceptance)):
            raise TypeError(
                f"MinimumBlock: rule is a {type(rule).__name__}; expected Exact or a relaxed rule, "
                "since forced tokens are neither drawn nor argmax"
            )

    def admits(self, row: FloatRow, best: int, token_ids: Sequence[int]) -> Sequence[bool]:
        """See RelaxedAcceptance: what the rule beneath admits."""
        if isinstance(self.rule, Exact):
            return [False] * len(token_ids)
        return self.rule.admits(row, best, token_ids)

    def pick(self, row: FloatRow, best: int, offer: Offer) -> int:
        """See RelaxedAcceptance."""
        token = best if isinstance(self.rule, Exact) else self.rule.pick(row, best, offer)
        forced = offer.depth + 1 < self.length and len(offer.token_ids) > 0
        return offer.token_ids[0] if forced and token not in offer.token_ids else token

    def __str__(self) -> str:
        """See RelaxedAcceptance; the rule beneath follows unless it is the exact one."""
        beneath = "" if isinstance(self.rule, Exact) else f",{self.rule}"
        return f"{self.name}:{self.length}{beneath}"


def among_best(row: FloatRow, token_ids: Sequence[int], count: int) -> set[int]:
    """Those of the tokens that are among the count best by logit, then by smaller id."""
    found = set()
    for token in sorted(token_ids, key=lambda token: (-row[token], token)):
        ahead = np.count_nonzero(row > row[token]) + np.count_nonzero(row[:token] == row[token])
        if ahead >= count:
            break  # so are all behind it
        found.add(token)
    return found


def _value_row(values: Any) -> npt.NDArray[np.float64]:
    row = np.asarray(values, np.float64)
    finite = bool(np.isfinite(row).all())
    if row.ndim != 1 or not finite:
        found = f"shape {row.shape}" if finite else "NaN or infinity among them"
        raise ValueError(
            f"Distance: values have {found}; expected (V,) finite numbers, one for each token"
        )
    return row
