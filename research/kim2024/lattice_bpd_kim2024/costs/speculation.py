"""Expected gains of a draft model under sampling (Leviathan, Kalman, Matias 2023).

With p the target's distribution, q the draft model's, g draft tokens in each call and c the time of
a call of the draft model in calls of the target:

    rate         E[sum of min(p, q)], the paper's alpha: how often a draft token is accepted
    tokens       (1 - rate^(g + 1)) / (1 - rate), decoded by each call of the target
    improvement  tokens / (g c + 1), speed relative to decoding without drafts
    operations   (g c' + g + 1) / tokens, c' being c in arithmetic operations

They hold where acceptances are independent of each other and a call takes the same time for g + 1
tokens as for one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Probs = npt.NDArray[np.floating]
LONGEST = 64  # draft tokens that `best_draft_length` tries


def acceptance_rate(target_probs: Probs, draft_probs: Probs, lenience: float = 1.0) -> float:
    """How often a sample of the draft model is accepted by `Rejection`: the paper's alpha.

    Args:
        target_probs: (.., V) p at each position, probabilities that sum to 1.
        draft_probs: (.., V) q there.
        lenience: l of `Rejection`; the mean is of sum of min(p / l, q).

    Returns:
        The mean over positions, 0..1.

    Raises:
        ValueError: other shapes, no position, no probabilities, or lenience outside (0, 1].
    """
    target, draft = _check_probs(target_probs, draft_probs)
    if not 0.0 < lenience <= 1.0:
        raise ValueError(f"acceptance_rate: lenience is {lenience}; expected above 0, at most 1")
    return float(np.minimum(target / lenience, draft).sum(axis=-1).mean())


def shared_noise_rate(target_probs: Probs, draft_probs: Probs) -> float:
    """How often samples of p and q by the same Gumbel noise are equal.

    That is the acceptance rate under `Sampled`. Token x is the sample of both with probability
    1 / sum over y of max(p_y / p_x, q_y / q_x). The rate is at least (1 - d) / (1 + d), where d is
    the total variation distance (Daliri, Musco, Suresh 2024), and at most `acceptance_rate`.

    Args:
        target_probs: see `acceptance_rate`, as for draft_probs.
        draft_probs: see there.

    Returns:
        The mean over positions, 0..1.

    Raises:
        ValueError: see there.
    """
    target, draft = _check_probs(target_probs, draft_probs)
    rates = [_coupled(p, q) for p, q in zip(target, draft, strict=True)]
    return float(np.mean(rates))


def _coupled(target: Probs, draft: Probs) -> float:
    """The rate at one position, in O(V log V): tokens by rising p / q have max(..) on one side."""
    both = (target > 0.0) & (draft > 0.0)
    p, q = target[both], draft[both]
    order = np.argsort(p / q)
    p, q = p[order], q[order]
    # Of token x, p_y / p_x is the greater one for those with p_y / q_y above p_x / q_x.
    others_p, others_q = 1.0 - p.sum(), 1.0 - q.sum()  # where only one of both is above 0
    above = np.append(np.cumsum(p[::-1])[::-1][1:], 0.0) + others_p
    below = np.cumsum(q) + others_q
    return float((1.0 / (above / p + below / q)).sum())


def expected_tokens(rate: float, draft_length: float) -> float:
    """Tokens that a call of the target decodes, its own token included (equation 1).

    Args:
        rate: acceptance rate, 0..1.
        draft_length: g, 0 or more.

    Raises:
        ValueError: a number out of range.
    """
    _check_numbers(rate, draft_length)
    if rate == 1.0:
        return draft_length + 1.0
    return float((1.0 - rate ** (draft_length + 1)) / (1.0 - rate))


def walltime_improvement(rate: float, draft_length: float, cost: float) -> float:
    """Speed relative to decoding without drafts (theorem 3.8).

    Args:
        rate: acceptance rate, 0..1.
        draft_length: g, 0 or more.
        cost: c, time of a call of the draft model / time of a call of the target.

    Raises:
        ValueError: a number out of range.
    """
    _check_numbers(rate, draft_length, cost)
    return expected_tokens(rate, draft_length) / (draft_length * cost + 1.0)


def operations_factor(rate: float, draft_length: float, cost: float) -> float:
    """Arithmetic operations relative to decoding without drafts (theorem 3.11).

    Args:
        rate: acceptance rate, 0..1.
        draft_length: g, 0 or more.
        cost: operations of the draft model for a token / operations of the target for one; about
            the ratio of their parameters.

    Raises:
        ValueError: a number out of range.
    """
    _check_numbers(rate, draft_length, cost)
    return (draft_length * cost + draft_length + 1.0) / expected_tokens(rate, draft_length)


def best_draft_length(rate: float, cost: float, most: int = LONGEST) -> int:
    """The g of greatest `walltime_improvement`; 0 where no draft pays, that is if rate <= c.

    Args:
        rate: acceptance rate, 0..1.
        cost: c.
        most: longest draft to try.

    Raises:
        ValueError: a number out of range.
    """
    _check_numbers(rate, most, cost)
    return max(range(most + 1), key=lambda length: walltime_improvement(rate, length, cost))


def estimate_rate(accept_lengths: Sequence[int], draft_lengths: Sequence[int]) -> float:
    """The acceptance rate of a run: accepted draft tokens / draft tokens that were judged.

    After the first rejection of a call no further token is judged. This is the maximum likelihood
    estimate where acceptances are independent.

    Args:
        accept_lengths: accepted draft tokens of each call.
        draft_lengths: draft tokens of each call, a single draft.

    Raises:
        ValueError: other lengths, or no token was judged.
    """
    accepted, drafted = np.asarray(accept_lengths), np.asarray(draft_lengths)
    if accepted.shape != drafted.shape or (accepted > drafted).any() or not drafted.any():
        raise ValueError(
            f"estimate_rate: {accepted.size} accepted lengths, {drafted.size} draft lengths, "
            f"{int(drafted.sum())} draft tokens; expected as many of each, drafts of one token or "
            "more, and none accepted beyond its length"
        )
    return float(accepted.sum() / (accepted + (accepted < drafted)).sum())


@dataclass(frozen=True)
class Prediction:
    """What the theory says of a draft model; the columns of tables.

    Attributes:
        acceptance_rate: see the function.
        draft_length: g.
        cost: c, in time.
        operations_cost: c, in arithmetic operations.
    """

    acceptance_rate: float
    draft_length: int
    cost: float
    operations_cost: float

    def to_json(self) -> dict[str, float]:
        """All figures by name."""
        rate, length = self.acceptance_rate, self.draft_length
        return {
            "acceptance_rate": rate,
            "draft_length": length,
            "cost": self.cost,
            "operations_cost": self.operations_cost,
            "tokens_per_call": expected_tokens(rate, length),
            "improvement": walltime_improvement(rate, length, self.cost),
            "best_draft_length": best_draft_length(rate, self.cost),
            "operations_factor": operations_factor(rate, length, self.operations_cost),
        }


def _check_probs(target: Probs, draft: Probs) -> tuple[Probs, Probs]:
    """Both as (N, V) float64."""
    one, other = np.asarray(target, np.float64), np.asarray(draft, np.float64)
    is_valid = one.shape == other.shape and one.ndim >= 1 and one.size > 0
    if is_valid:
        one, other = one.reshape(-1, one.shape[-1]), other.reshape(-1, one.shape[-1])
        sums = np.concatenate([one.sum(axis=1), other.sum(axis=1)])
        is_valid = min(one.min(), other.min()) >= 0.0 and bool(np.allclose(sums, 1.0, atol=1e-4))
    if not is_valid:
        raise ValueError(
            f"acceptance rate: arrays of shapes {np.shape(target)} and {np.shape(draft)}; expected "
            "two of one shape (.., V), of probabilities that sum to 1"
        )
    return one, other


def _check_numbers(rate: float, draft_length: float, cost: float = 0.0) -> None:
    if not 0.0 <= rate <= 1.0 or not 0 <= draft_length < math.inf or not 0.0 <= cost < math.inf:
        raise ValueError(
            f"speculation: the acceptance rate is {rate}, draft_length {draft_length}, cost "
            f"{cost}; expected 0..1, and numbers of 0 or more"
        )
