"""The lossy acceptance rules of the literature."""

from __future__ import annotations

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from inspect import signature
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from lattice_bpd.arguments import check_int, check_number
from lattice_bpd.verify.acceptance.sampling import Rejection, Sampled
from lattice_bpd.verify.greedy import (
    DraftCandidates,
    FloatRow,
    TokenSelector,
    greedy_tokens,
    logits_row,
)


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
        """See `lattice_bpd.verify.greedy.TokenSelector`.

        Raises:
            ValueError: a NaN among the logits.
        """
        row = logits_row(logits)
        best = int(greedy_tokens(torch.from_numpy(row)))
        token = self._rule.pick(row, best, candidates)
        if token != best:
            self.regrets.append((self._chosen, float(row[best]) - float(row[token])))
        self._chosen += 1
        return token


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
        check_int("TopKMatch: k", self.k, 1)

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
        check_int("SpecDecPlusPlus: top_beta", self.top_beta, 1)
        check_number("SpecDecPlusPlus: tau", self.tau, 0.0)

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
            check_number(f"Typical: {name}", value, 0.0)
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


def parse_acceptance(text: str) -> Acceptance:
    """The rule that a text names.

        exact      top_k:4      typical:0.09,0.3      specdec++:3,1.0
        sampled:0.8,top_p=0.95,seed=1      rejection:0.8

    Args:
        text: name, then a colon and its numbers; the last ones are optional where the rule has
            defaults. Sampling rules also take top_k=, top_p=, min_p= and seed=, and rejection takes
            lenience=.

    Returns:
        The rule; `str` of it gives the text again.

    Raises:
        ValueError: an unknown name, or numbers that are missing, too many or out of range.
    """
    name, _, rest = text.strip().partition(":")
    if name not in _RULES:
        near = difflib.get_close_matches(name, _RULES, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"acceptance: unknown rule {name!r}; {hint}expected one of {', '.join(_RULES)}"
        )
    make, example = _RULES[name]
    words = [word.partition("=") for word in rest.split(",")] if rest else []
    try:
        numbers = [_number(word) for word, is_named, _ in words if not is_named]
        options = {key: _number(word) for key, is_named, word in words if is_named}
        signature(make).bind(*numbers, **options)  # its errors name no class
        return make(*numbers, **options)
    except (ValueError, TypeError) as error:
        raise ValueError(f"acceptance: {text!r}: {error}; such as {example}") from error


def _number(word: str) -> float:
    try:
        return int(word)
    except ValueError:
        return float(word)


_RULES: dict[str, tuple[Callable[..., Acceptance], str]] = {
    Exact.name: (Exact, "exact"),
    TopKMatch.name: (TopKMatch, "top_k:4"),
    SpecDecPlusPlus.name: (SpecDecPlusPlus, "specdec++:3,1.0"),
    Typical.name: (Typical, "typical:0.09,0.3"),
    Sampled.name: (Sampled, "sampled:0.8,top_p=0.95,seed=1"),
    Rejection.name: (Rejection, "rejection:0.8,seed=1"),
}
