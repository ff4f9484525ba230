"""Validation of head logits and exact top-k selection on their device.

On the host the C++ core selects in one pass over the caller's memory, with any strides. On an
accelerator torch selects, and only k columns are copied to the host, in one small copy:

    accelerator                               host
    logits (B*H, V)
      -> 64-bit keys -> topk  (B*H, k)  --->  token ids, scores; NaN and +inf are detected
                                              search
    drafts                    <-------------  token ids, scores, counts ..

A key is a logit's bits in an order-preserving form, followed by the complement of the token id:
candidates are sorted by descending score, ties by ascending token id. Nothing else synchronizes
with the accelerator. Where torch runs a model on the CPU, the core's parallel work is on torch's
threads.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.arguments import check_int
from lattice_bpd.token_ids import check_has_values

if TYPE_CHECKING:
    import torch


Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

_LOW = 0xFFFFFFFF
_NAN = 0x7FFFFFFF  # greater than every number
_TYPES = "float32, float16 or bfloat16"


def top_k_on_device(
    logits: torch.Tensor, top_k: int, log_softmax: bool, skip_bad_rows: bool = False
) -> tuple[Int32Array, Float32Array]:
    """Exact top-k on the tensor's device, with one copy of k columns to the host.

    Args:
        logits: (.., V) float32, float16 or bfloat16.
        top_k: k, 1..V.
        log_softmax: Scores are log probabilities over the vocabulary, else raw logits.
        skip_bad_rows: Rows with NaN or +inf get token id -1 instead of an error.

    Returns:
        token_ids (.., k) int32 and scores (.., k) float32, sorted by descending score, ties by
        ascending token id; on the host.

    Raises:
        ValueError: NaN or +inf; the message names row and token.
    """
    packed = pack_top_k(logits.detach().reshape(-1, logits.shape[-1]), top_k, log_softmax)
    shape = (*logits.shape[:-1], top_k)
    token_ids, scores = unpack_top_k(packed.cpu().numpy(), top_k, skip_bad_rows)
    return token_ids.reshape(shape), scores.reshape(shape)


def pack_top_k(rows: torch.Tensor, top_k: int, log_softmax: bool) -> torch.Tensor:
    """(rows, V) logits -> (rows, k) int64 keys, best first, without synchronization.

    With log_softmax there is one more column: the bits of the row's float32 logsumexp.
    """
    import torch

    values = rows.float() + 0.0  # -0.0 equals 0.0
    bits = values.view(torch.int32).to(torch.int64)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ordered = ordered.masked_fill(values.isnan(), _NAN)
    token_ids = torch.arange(values.shape[1], device=values.device)
    keys = (ordered << 32) | (_LOW - token_ids)
    best = keys.topk(top_k, dim=1, sorted=True).values
    if not log_softmax:
        return best
    total = values.logsumexp(dim=1, keepdim=True).view(torch.int32)
    return torch.cat([best, total.to(torch.int64)], dim=1)


def unpack_top_k(
    packed: Int64Array, top_k: int, skip_bad_rows: bool = False
) -> tuple[Int32Array, Float32Array]:
    """Output of pack_top_k -> token_ids (rows, k) int32 and scores (rows, k) float32."""
    keys = packed[:, :top_k]
    token_ids = (_LOW - (keys & _LOW)).astype(np.int32)
    ordered = (keys >> 32).astype(np.int32)
    scores = np.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).view(np.float32)
    bad = ~(scores[:, 0] < np.inf)
    if skip_bad_rows:
        token_ids[bad] = -1
    elif bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"head_logits: NaN or +inf at row {row}, token {token_ids[row, 0]}; expected finite "
            "logits, or -inf for masked tokens. Check the head that computed them"
        )
    if packed.shape[1] > top_k:
        total = packed[:, top_k:].astype(np.int32).view(np.float32)
        scores = scores - np.where(np.isinf(total), np.float32(0), total)  # all tokens masked
    return token_ids, scores


@cache
def use_torch_threads() -> bool:
    """Makes the core's parallel calls run on torch's threads, as many as torch is set to.

    For callers whose logits torch has just computed on the CPU. Torch's threads spin for some
    milliseconds after each call, so other threads would share cores with them. Where torch has one
    thread, in forked children, and with a torch before 2.10, which does not offer its threads, the
    core uses threads of its own.

    Returns:
        Whether torch offers its threads.
    """
    library = ctypes.CDLL(sys.modules["torch"]._C.__file__)  # finds what it was linked with too
    try:
        functions = library.torch_parallel_for, library.torch_get_num_threads
    except AttributeError:
        return False
    _core.use_thread_team(*map(_address, functions))
    return True


def _address(function: Any) -> int:
    value = ctypes.cast(function, ctypes.c_void_p).value
    assert value is not None
    return value


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
    head_logits: Any,
    top_k: int,
    *,
    log_softmax: bool,
    where: str,
    threads: int = 0,
    skip_bad_rows: bool = False,
) -> Candidates:
    """Selects the k best tokens of each slot on the logits' device.

    Args:
        head_logits: (H, V) or (B, H, V) float32, float16 or bfloat16, numpy or torch.
        top_k: k, 1..V.
        log_softmax: Scores are log probabilities over the vocabulary instead of raw logits.
        where: The caller's name, for error messages.
        threads: How many threads share the rows on the CPU, 0 for all cores; fewer where there is
            little to do.
        skip_bad_rows: Rows with NaN or +inf get token id -1 instead of an error.

    Returns:
        Candidates with B = 1 for a single lattice.

    Raises:
        TypeError: Another element type.
        ValueError: Wrong shape, top_k out of range, NaN or +inf.
    """
    is_torch = check_shape(head_logits, where)
    if type(top_k) is not int or not 1 <= top_k <= head_logits.shape[-1]:
        top_k = check_int(f"{where}: top_k", top_k, 1, int(head_logits.shape[-1]))
    float_type = _element_type(head_logits, where, is_torch)
    try:
        if is_torch and head_logits.device.type != "cpu":
            token_ids, scores = top_k_on_device(head_logits, top_k, log_softmax, skip_bad_rows)
        else:
            array = _host_array(head_logits, float_type) if is_torch else head_logits
            token_ids, scores = _core.select_top_k(
                array, float_type, top_k, log_softmax, threads, skip_bad_rows
            )
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if token_ids.ndim == 2:
        token_ids, scores = token_ids[None], scores[None]
    return Candidates(token_ids, scores)


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
