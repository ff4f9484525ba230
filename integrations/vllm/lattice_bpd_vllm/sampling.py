"""Whether this build of vLLM verifies drafts of sampled requests correctly, and the repair.

The CPU build 0.32.0 computes `expand_batch_to_tokens` into a converted copy and drops it: the
temperatures of all drafted rows are then uninitialized memory as soon as one request of the batch
samples, with every drafting method.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_NAME = "expand_batch_to_tokens"


def expansion_state(rejection_sampler: Any) -> str:
    """Whether the module's `expand_batch_to_tokens` repeats values for each token of a request.

    Args:
        rejection_sampler: the module `vllm.v1.sample.rejection_sampler`, or one like it.

    Returns:
        "correct", "incorrect", or "absent" where there is no such function or it cannot be called
        with the arguments of the tested releases.
    """
    expand = getattr(rejection_sampler, _NAME, None)
    if expand is None:
        return "absent"
    try:
        correct = all(
            _is_correct(
                expand, torch.tensor([shift, 0, shift + 2], device="cpu").to(dtype), 3 + shift
            )
            for dtype in (torch.float32, torch.int32)
            for shift in range(1, 4)
        )
    except Exception:
        return "absent"
    return "correct" if correct else "incorrect"


def _is_correct(expand: Any, values: Tensor, last: int) -> bool:
    """Compares one call, of values for 2, 1 and `last` tokens."""
    ends = torch.tensor([2, 3, 3 + last], dtype=torch.int32, device="cpu")
    expected = _expand(values, ends, 3 + last, 0, 1)
    stale = [torch.full((3 + last,), -7, dtype=values.dtype, device="cpu") for _ in range(4)]
    del stale  # freed memory that a result without values is likely to get
    return torch.equal(expand(values, ends, 3 + last, 0, 1), expected)


def repair_expansion(rejection_sampler: Any) -> None:
    """Replaces the module's `expand_batch_to_tokens` by a correct one, on the CPU."""
    setattr(rejection_sampler, _NAME, _expand)


def _expand(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    """Each value of x (B,) repeated for the tokens of its request, (num_tokens,)."""
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    expanded = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return torch.repeat_interleave(expanded, counts, output_size=num_tokens)
