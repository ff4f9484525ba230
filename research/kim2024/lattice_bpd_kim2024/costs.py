"""Expected speed: a cost model of tree drafting, and the theory of speculative decoding.

The model of table 11 of Kim et al. 2024: a call of the target reads its parameters once and the
keys and values of all tokens that it attends to, drafted ones included, and it computes for the
context and for each drafted token. A decoded token costs that divided by block efficiency.

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
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

SEQUENCE_LENGTHS = (128, 512, 1024, 2048)
"""Context lengths of table 11."""


class TokenCost(NamedTuple):
    """Cost of a decoded token at batch size 1.

    Attributes:
        parameter_gb: parameters read, in GB (1e9 bytes).
        kv_gb: keys and values read, in GB.
        tera_flops: arithmetic, in 1e12 operations.
    """

    parameter_gb: float
    kv_gb: float
    tera_flops: float


@dataclass(frozen=True)
class CostModel:
    """What a call of one model reads and computes.

    Attributes:
        parameter_bytes: read by every call.
        kv_bytes: keys and values of a token in all layers.
        flops_per_call: independent of the draft.
        flops_per_draft_token: for each drafted token.
        attention_flops: for each pair of a query token and a token that it attends to.
    """

    parameter_bytes: float
    kv_bytes: float
    flops_per_call: float
    flops_per_draft_token: float
    attention_flops: float = 0.0

    @classmethod
    def of_size(
        cls, num_parameters: float, num_layers: int, kv_width: int, *, bytes_per_value: float = 2.0
    ) -> CostModel:
        """A dense transformer with a KV cache.

        Args:
            num_parameters: of target and heads, all read by each call.
            num_layers: attention layers.
            kv_width: values of a token's keys in one layer, key-value heads x head size.
            bytes_per_value: 2 for bfloat16.

        Returns:
            CostModel with 2 operations for each parameter and token, and 4 x kv_width x layers for
            each pair of tokens.

        Raises:
            ValueError: a size that is not above 0.
        """
        sizes = {"num_parameters": num_parameters, "num_layers": num_layers}
        for name, value in {**sizes, "kv_width": kv_width, "bytes": bytes_per_value}.items():
            if not 0 < value < math.inf:
                raise ValueError(f"CostModel: {name} is {value}; expected a number above 0")
        return cls(
            parameter_bytes=num_parameters * bytes_per_value,
            kv_bytes=2.0 * num_layers * kv_width * bytes_per_value,
            flops_per_call=2.0 * num_parameters,
            flops_per_draft_token=2.0 * num_parameters,
            attention_flops=4.0 * num_layers * kv_width,
        )

    def per_token(
        self,
        block_efficiency: float,
        sequence_length: int,
        draft_tokens: float = 0.0,
        rescorer: CostModel | None = None,
    ) -> TokenCost:
        """The cost of a decoded token.

        Args:
            block_efficiency: decoded tokens per call, 1 for greedy decoding.
            sequence_length: tokens of the context.
            draft_tokens: verified by each call: p x h for a list (the paper counts 9 for each
                draft, head 1 among them), the nodes of a tree.
            rescorer: a neural rescorer that runs once per call.

        Raises:
            ValueError: a block efficiency that is not above 0, or negative sizes.
        """
        if not 0 < block_efficiency < math.inf or sequence_length < 0 or draft_tokens < 0:
            raise ValueError(
                f"per_token: block efficiency {block_efficiency}, {sequence_length} tokens of "
                f"context and {draft_tokens} drafted; expected a block efficiency above 0 and "
                "counts of 0 or more"
            )
        tokens = sequence_length + draft_tokens
        parameters = kv = flops = 0.0
        for model in (self, rescorer):
            if model is not None:
                parameters += model.parameter_bytes
                kv += tokens * model.kv_bytes
                flops += model.flops_per_call + draft_tokens * model.flops_per_draft_token
                flops += model.attention_flops * sequence_length * (1 + draft_tokens)
        calls = 1.0 / block_efficiency
        return TokenCost(parameters * calls / 1e9, kv * calls / 1e9, flops * calls / 1e12)


PAPER_TARGET = CostModel(
    parameter_bytes=3.0e9,  # 1.5 B parameters in bfloat16
    kv_bytes=18 * 12_288 * 2 * 2,  # 18 layers, K and V; table 11 uses the feed-forward width
    flops_per_call=0.931e12,
    flops_per_draft_token=0.00094e12,
)
"""The 1.5 B blockwise parallel LM of Kim et al. 2024 (tables 6 and 11)."""

PAPER_RESCORER = CostModel(
    parameter_bytes=0.122e9,  # 61 M parameters in bfloat16
    kv_bytes=12 * 1_536 * 2 * 2,  # 12 layers
    flops_per_call=0.155e12,  # derived from table 11's one cell; the paper gives no formula
    flops_per_draft_token=0.0,
)
"""The paper's 61 M neural rescorer."""


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
