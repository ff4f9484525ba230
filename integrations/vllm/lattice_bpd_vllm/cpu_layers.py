"""Linear layers of vLLM's CPU build by the core, on processors where torch's are slow.

Without AVX-512 the CPU build gives 16-bit weights to torch, which reads them once for each token,
so that a step with drafts costs as much as steps without. The core reads them once for all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lattice_bpd.lattice.logits import use_torch_threads
from lattice_bpd.models.linear import ANY_NUMBER, MOST_STATES, VECTOR, linear


def use_core_layers(target: Any) -> int:
    """Lets the core multiply by a target's 16-bit weights where it is faster whatever the batch.

    Args:
        target: a model of vLLM on the CPU, before it is compiled.

    Returns:
        The number of layers that do so from now on. Results change by rounding alone.
    """
    layers = [layer for layer in target.modules() if _is_slow(layer)]
    if not layers or not use_torch_threads():
        return 0
    for layer in layers:
        layer.cpu_linear = _apply
    return len(layers)


def _is_slow(layer: Any) -> bool:
    """Whether vLLM gives a layer's weight to torch, unpacked, and the core takes it."""
    weight = getattr(layer, "weight", None)
    return (
        hasattr(layer, "cpu_linear")
        and isinstance(weight, Tensor)
        and weight.dim() == 2
        and weight.numel() > 0
        and weight.shape[1] % VECTOR == 0
        and weight.itemsize == 2
        and MOST_STATES.get(weight.dtype, 0) >= ANY_NUMBER
    )


def _apply(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What vLLM calls for a layer: (N, D) and (R, D) -> (N, R)."""
    if torch.compiler.is_compiling():
        result: Tensor = torch.ops.lattice_bpd.linear(states, weight, bias)
        return result
    return _multiply(states, weight, bias)


def _multiply(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # `data`: parameters of vLLM are of classes of their own.
    return linear(states, weight.data, None if bias is None else bias.data)


def _empty_like_result(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: ARG001
    return states.new_empty(*states.shape[:-1], weight.shape[0])


_OPERATORS: Any = torch.library.Library("lattice_bpd", "FRAGMENT")  # type: ignore[no-untyped-call]
_OPERATORS.define("linear(Tensor states, Tensor weight, Tensor? bias) -> Tensor")
_OPERATORS.impl("linear", _multiply, "CPU")
torch.library.register_fake("lattice_bpd::linear", _empty_like_result, lib=_OPERATORS)
