"""Linear layers by the core, on processors where those of torch are slow.

torch multiplies bfloat16 matrices fast on processors with AVX-512 or AMX. On others it reads a
matrix once for each token, so that a call with drafts costs as much as calls without. The core's
layers read it once for all.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lattice_bpd import _core

_MULTIPLE = 16  # the width of a state is one
_HAS_BFLOAT16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
# States of a call up to which the core's linear layers are faster than torch's, by their type.
MOST_STATES = {torch.float32: 64, torch.bfloat16: 0 if _HAS_BFLOAT16 else 1 << 20}
if torch.backends.cpu.get_cpu_capability() != "AVX2":
    MOST_STATES = {}


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether torch multiplies bfloat16 matrices there faster than float32 ones."""
    return device.type != "cpu" or _HAS_BFLOAT16


class CpuLinear(nn.Linear):
    """A linear layer by `linear`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (its name in torch)
        """(..., out_features) float from (..., in_features)."""
        return linear(input, self.weight, self.bias)


def linear(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`, by the core where that is faster.

    Each row of the core's result is independent of the other rows, to the last bit.

    Args:
        states: (..., D) float.
        weight: (R, D) float.
        bias: (R,) float, or None.
    """
    rows, width = weight.shape
    count = math.prod(states.shape[:-1])
    numbers = (states, weight) if bias is None else (states, weight, bias)
    if (
        count > MOST_STATES.get(weight.dtype, 0)
        or width % _MULTIPLE != 0
        or count == 0
        or any(one.device.type != "cpu" or one.dtype != weight.dtype for one in numbers)
        or not (weight.is_contiguous() and (bias is None or bias.is_contiguous()))
        or (torch.is_grad_enabled() and any(one.requires_grad for one in numbers))
        or torch.is_autocast_enabled("cpu")
        or torch.compiler.is_compiling()
    ):
        return F.linear(states, weight, bias)
    states = states.contiguous()
    out = states.new_empty(*states.shape[:-1], rows)
    _core.apply_linear(
        (count, rows, width), weight.dtype == torch.bfloat16, states.data_ptr(),
        weight.data_ptr(), 0 if bias is None else bias.data_ptr(), out.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    return out
