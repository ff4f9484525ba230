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
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lattice_bpd.models.forward import call_forward
from lattice_bpd.models.lm_call import build_inputs
from lattice_bpd.verify.memory import is_lack_of_memory

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
    # Where a window hides the wrong context, that distance is rounding too.
    least = 4.0 * math.sqrt(expected.shape[-1]) * _EPS32 * scale
    limit = 0.2 * (wrong - expected).norm(dim=-1) + least
    return bool(
        (differences.abs().max() <= 8.0 * rounding_bound(base) * scale)
        and (differences.norm(dim=-1) <= limit).all()
    )


def texts_match(
    target: Any,
    token_ids: Sequence[int],
    read: Callable[[list[int]], tuple[Tensor, Tensor, Tensor] | None],
) -> bool:
    """Whether two ways to read a text give the same logits up to rounding.

    In a 16-bit type the logits of one token in thirty differ by more than a fifth of their distance
    to those of a wrong context (SmolLM2 in bfloat16 by oneDNN). Where a text mismatches in such a
    type, two of three others must match.

    Args:
        target: see `lattice_bpd.verify.target.build_target`.
        token_ids: of the first text, small, so that every vocabulary has them.
        read: a text's actual, expected and wrong logits, see `logits_match`; None: a mismatch.

    Raises:
        Exception: of `read` for the first text, and for lack of memory.
    """

    def matches(token_ids: list[int]) -> bool:
        logits = read([token % size for token in token_ids])
        return logits is not None and logits_match(target.base, *logits)

    size = int(target.vocab_size)
    if matches(list(token_ids)):
        return True
    count = 0
    for shift in (17, 34, 51) if torch.finfo(target.base.dtype).bits < 32 else ():
        try:
            count += matches([token * max(size // 16, 1) + shift for token in token_ids])
        except Exception as error:
            if is_lack_of_memory(error):
                raise
    return count >= 2


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
