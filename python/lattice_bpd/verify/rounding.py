"""Bounds on the rounding differences of logits between calls of one model.

Calls of different shapes sum in different orders. Each of the 2 L + 1 additions to the residual
stream of L layers, and the logits themselves, is rounded to the model's dtype (relative error below
eps / 2) after a sum of up to n terms that hardware keeps in float32 or better, whose errors grow
like sqrt(n) eps32 (Higham and Mary 2019: rounding errors are independent, so they add up like a
random walk). Independent errors of 2 L + 1 steps grow like their square root:

    error of a logit      sqrt(2 L + 1) (eps + sqrt(n) eps32) scale        scale: largest |logit|
    bound                 4 times that: two calls differ (2), and two logits approach each other (2)

The bound depends on dtype and size of the model only, never on a measured difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from lattice_bpd.models.forward import call_forward
from lattice_bpd.models.lm_call import build_inputs

_EPS32 = float(torch.finfo(torch.float32).eps)


def rounding_bound(base: Any) -> float:
    """The largest change of a difference of two logits, relative to the largest |logit|.

    Args:
        base: a model of `transformers`.
    """
    config = base.config.get_text_config(decoder=True)
    layers = int(getattr(config, "num_hidden_layers", None) or 1)
    terms = max((p.shape[-1] for p in base.parameters() if p.ndim >= 2), default=1)
    eps = float(torch.finfo(base.dtype).eps)
    return 4.0 * math.sqrt(2 * layers + 1) * (eps + math.sqrt(terms) * _EPS32)


def logits_match(base: Any, actual: Tensor, expected: Tensor, wrong: Tensor) -> bool:
    """Whether two ways to read the same tokens give the same logits up to rounding.

    No logit may differ by more than 8 rounding bounds, and the logits of a token (as a vector) by
    no more than a fifth of their distance to those of a wrong context. The first test decides in
    float32, the second in bfloat16, where rounding may also select other experts.

    Args:
        base: a model of `transformers`.
        actual: (N, V) float, logits of one way.
        expected: (N, V) float, of the other.
        wrong: (N, V) float, of the same tokens in a wrong context.
    """
    scale = float(expected[expected.isfinite()].abs().max())
    differences = actual - expected
    limit = 0.2 * (wrong - expected).norm(dim=-1) + 1e-6 * scale
    return bool(
        (differences.abs().max() <= 8.0 * rounding_bound(base) * scale)
        and (differences.norm(dim=-1) <= limit).all()
    )


def probe_tokens(target: Any, tokens: Sequence[int]) -> Iterator[list[int]]:
    """Token ids to compare two ways to read; more of them where one text may mismatch by rounding.

    In a 16-bit type the logits of one token in thirty differ by more than a fifth of their distance
    to those of a wrong context (SmolLM2 in bfloat16 by oneDNN), so that a probe tries other tokens
    before it refuses a model. A model that reads something else mismatches with all of them.

    Args:
        target: see `lattice_bpd.verify.target.build_target`.
        tokens: the first ids, small, so that every vocabulary has them.
    """
    size = int(target.vocab_size)
    yield [token % size for token in tokens]
    for shift in range(3 if torch.finfo(target.dtype).bits < 32 else 0):
        yield [(token * max(size // 16, 1) + 17 * shift) % size for token in tokens]


def read_tokens(target: Any, tokens: Sequence[int], cache: Any, start: int) -> Tensor:
    """(T, V) float32 logits of the tokens from position `start` on, by the model's own forward."""
    ids = torch.tensor([list(tokens)], device=target.device)
    positions = torch.arange(start, start + ids.shape[1], device=target.device)[None]
    inputs = build_inputs(
        target.base, ids, cache, positions, takes_positions=target.takes_positions
    )
    output = call_forward(target.base, target.embedding, inputs, needs_hidden=False)
    return output.logits[0].float()


def read_parts(
    target: Any, prompt: Sequence[int], parts: Sequence[Sequence[int]], start: int = 0
) -> Tensor:
    """(N, V) logits of the tokens after the prompt, which is read in one call, as each part is."""
    cache, logits = target.new_cache(), []
    for part in (prompt, *parts):
        logits.append(read_tokens(target, part, cache, start))
        start += len(part)
    return torch.cat(logits[1:])
