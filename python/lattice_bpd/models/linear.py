"""Linear layers by the core, on processors where those of torch are slow.

The core's layers read a matrix once for all tokens of a call, at the speed of memory. On processors
without AVX-512 torch reads one of 16-bit numbers once for each token, so that a call with drafts
costs as much as calls without. On those with AMX it takes longer for a few tokens, and wins with
many.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.nn import functional as F

from lattice_bpd import _core
from lattice_bpd.models.hooks import as_own

VECTOR = 16  # the core takes widths that are a multiple
_PLAIN = (Tensor, nn.Parameter)  # others, such as quantized ones, have no numbers of their dtype
_HAS_MKLDNN = torch._C._has_mkldnn  # oneDNN
_HAS_BFLOAT16 = _HAS_MKLDNN and torch.ops.mkldnn._is_mkldnn_bf16_supported()
_HAS_FLOAT16 = _HAS_MKLDNN and torch.ops.mkldnn._is_mkldnn_fp16_supported()
# States of a call up to which the core's linear layers are faster than torch's, by their type, as
# `benchmarks/bench_linear.py` measured.
MOST_STATES: dict[torch.dtype, int] = {}
ANY_NUMBER = 1 << 20
if torch.backends.cpu.get_cpu_capability() == "AVX2":
    MOST_STATES = {
        torch.float32: 64,
        torch.float16: 0 if _HAS_FLOAT16 else ANY_NUMBER,
        torch.bfloat16: 0 if _HAS_BFLOAT16 else ANY_NUMBER,
    }
elif getattr(torch.cpu, "_is_amx_tile_supported", bool)():
    MOST_STATES = {torch.bfloat16: 8, torch.float16: 16}


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether torch multiplies bfloat16 matrices there faster than float32 ones."""
    return device.type != "cpu" or _HAS_BFLOAT16


class DecodingCall(threading.local):
    """What this thread's call of `generate` lends the core's kernels to.

    Attributes:
        kernels: by model, see `lattice_bpd.verify.cpu_kernels`; None: outside of a call, or in one
            without kernels.
    """

    kernels: dict[nn.Module, Any] | None = None


CALL = DecodingCall()


class CpuLinear(nn.Linear):
    """`nn.Linear` by `linear`; the parameters are the same, so `state_dict` is too."""

    is_lent = False  # during calls of `generate`, to their threads

    @as_own
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (its name in torch)
        """(..., out_features) float from (..., in_features)."""
        multiply = F.linear if self.is_lent and CALL.kernels is None else linear
        return multiply(input, self.weight, self.bias)


class LentLinear(CpuLinear):
    """`CpuLinear` in threads that decode with the core's kernels, `nn.Linear` in others."""

    is_lent = True


def linear(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`, by the core where that is faster.

    Each row of the core's result is independent of the other rows, to the last bit.

    Args:
        states: (..., D) float.
        weight: (R, D) float.
        bias: (R,) float, or None.

    Returns:
        (..., R) float, of the type of `weight`.

    Raises:
        RuntimeError: as that of torch.
    """
    is_followed = torch.compiler.is_compiling() or torch._C._is_tracing()
    if is_followed or forward_ad._current_level >= 0 or peek_interpreter_stack() is not None:
        return F.linear(states, weight, bias)
    rows, width = weight.shape[0], weight.shape[-1]
    count = math.prod(states.shape[:-1])
    numbers = (states, weight) if bias is None else (states, weight, bias)
    if (
        count > MOST_STATES.get(weight.dtype, 0)
        or width % VECTOR != 0
        or count == 0
        or weight.dim() != 2
        or states.shape[-1:] != (width,)
        or (bias is not None and bias.shape != (rows,))
        or any(
            type(one) not in _PLAIN
            or one.device.type != "cpu"
            or one.dtype != weight.dtype
            or one.layout != torch.strided
            or one.is_neg()
            for one in numbers
        )
        or not (weight.is_contiguous() and (bias is None or bias.is_contiguous()))
        or (torch.is_grad_enabled() and any(one.requires_grad for one in numbers))
        or torch.is_autocast_enabled("cpu")
    ):
        return F.linear(states, weight, bias)
    states = states.contiguous()
    out = states.new_empty(*states.shape[:-1], rows)
    _core.apply_linear(
        (count, rows, width), str(weight.dtype).removeprefix("torch."), weight.itemsize,
        states.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(),
        out.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return out
