"""Validation of head logits and exact top-k selection on their device.

On the host the C++ core selects in one pass over the caller's memory, with any strides. On an
accelerator torch selects, and only k columns are copied to the host. Candidates are sorted by
descending score, ties by ascending token id.
"""

from __future__ import annotations

import operator
import sys
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.lattice.device import top_k_on_device, use_torch_threads
from lattice_bpd.token_ids import check_has_values

if TYPE_CHECKING:
    import torch

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]

_TYPES = "float32, float16 or bfloat16"


@dataclass(slots=True)
class Candidates:
    """The k best tokens of each slot.

    Attributes:
        token_ids: (B, H, k) int32.
        scores: (B, H, k) float32, raw logits or log probabilities.
    """

    token_ids: Int32Array
    scores: Float32Array

    def at_temperature(self, temperature: float) -> Candidates:
        """The same tokens with scores divided by a temperature above 0."""
        if temperature == 1.0:
            return self
        return Candidates(self.token_ids, self.scores / np.float32(temperature))


def is_torch_tensor(value: Any) -> bool:
    """Whether `value` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def check_shape(head_logits: Any, where: str, dimensions: tuple[int, ...] = (2, 3)) -> bool:
    """Checks that logits are (H, V) or (B, H, V); returns whether they are a torch tensor.

    Raises:
        TypeError: Not a numpy array or torch tensor, or one without values.
        ValueError: Wrong number of dimensions, or one of them is 0.
    """
    check_has_values(head_logits, f"{where}: head_logits")
    is_torch = is_torch_tensor(head_logits)
    if not is_torch and not isinstance(head_logits, np.ndarray):
        raise TypeError(
            f"{where}: head_logits is a {type(head_logits).__name__}; expected a numpy array or "
            "a torch tensor"
        )
    shape = tuple(head_logits.shape)
    layouts = {2: "(slots, vocab)", 3: "(batch, slots, vocab)"}
    if len(shape) not in dimensions:
        expected = " or ".join(layouts[n] for n in dimensions)
        advice = "add the missing axis" if len(shape) < 2 else "give it one lattice or batch"
        raise ValueError(f"{where}: head_logits has shape {shape}; expected {expected}; {advice}")
    if 0 in shape:
        raise ValueError(f"{where}: head_logits has shape {shape}; expected no empty axis")
    return is_torch


def select_top_k(
    head_logits: Any, top_k: int, *, log_softmax: bool, where: str, threads: int = 0
) -> Candidates:
    """Selects the k best tokens of each slot on the logits' device.

    Args:
        head_logits: (H, V) or (B, H, V) float32, float16 or bfloat16, numpy or torch.
        top_k: k, 1..V.
        log_softmax: Scores are log probabilities over the vocabulary instead of raw logits.
        where: The caller's name, for error messages.
        threads: How many threads share the rows on the CPU, 0 for all cores; fewer where there is
            little to do.

    Returns:
        Candidates with B = 1 for a single lattice.

    Raises:
        TypeError: Another element type.
        ValueError: Wrong shape, top_k out of range, NaN or +inf.
    """
    is_torch = check_shape(head_logits, where)
    if type(top_k) is not int or not 1 <= top_k <= head_logits.shape[-1]:
        top_k = _checked_top_k(top_k, int(head_logits.shape[-1]), where)
    float_type = _element_type(head_logits, where, is_torch)
    try:
        if is_torch and head_logits.device.type != "cpu":
            token_ids, scores = _top_k_on_device(head_logits, top_k, log_softmax)
        else:
            array = _host_array(head_logits, float_type) if is_torch else head_logits
            token_ids, scores = _core.select_top_k(array, float_type, top_k, log_softmax, threads)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if token_ids.ndim == 2:
        token_ids, scores = token_ids[None], scores[None]
    return Candidates(token_ids, scores)


def _checked_top_k(top_k: int, vocab_size: int, where: str) -> int:
    try:
        number = operator.index(top_k)
    except TypeError:
        raise TypeError(f"{where}: top_k is {top_k!r}; expected an integer") from None
    if not 1 <= number <= vocab_size:
        raise ValueError(
            f"{where}: top_k is {number}; expected 1..{vocab_size} (the vocabulary of head_logits)"
        )
    return number


def _element_type(head_logits: Any, where: str, is_torch: bool) -> str:
    """The name of the element type; bfloat16 in numpy comes from ml_dtypes.

    Raises:
        TypeError: An unsupported type.
    """
    native = True
    if is_torch:
        name = _name_of(head_logits.dtype)
    else:
        name, native = head_logits.dtype.name, head_logits.dtype.isnative
    if name in ("float32", "float16", "bfloat16") and native:
        return name
    advice = "; convert it with .astype('float32') or .float()" if "64" in name else ""
    advice = advice or ("" if native else " in this machine's byte order")
    raise TypeError(f"{where}: head_logits has elements of type {name}; expected {_TYPES}{advice}")


@cache
def _name_of(torch_type: Any) -> str:
    return str(torch_type).removeprefix("torch.")


def _host_array(tensor: torch.Tensor, float_type: str) -> npt.NDArray[Any]:
    """A tensor's memory as a numpy array, bfloat16 as 16-bit integers."""
    use_torch_threads()
    if tensor.requires_grad:
        tensor = tensor.detach()
    if float_type == "bfloat16":
        tensor = tensor.view(sys.modules["torch"].int16)
    return tensor.numpy()


def _top_k_on_device(
    logits: torch.Tensor, top_k: int, log_softmax: bool
) -> tuple[Int32Array, Float32Array]:
    token_ids, scores = top_k_on_device(logits, top_k, log_softmax)
    shape = (*logits.shape[:-1], top_k)
    return token_ids.reshape(shape), scores.reshape(shape)
