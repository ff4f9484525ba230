"""Top-k on an accelerator, with one small copy to the host and one back.

    accelerator                               host
    logits (B*H, V)
      -> 64-bit keys -> topk  (B*H, k)  --->  token ids, scores; NaN and +inf are detected
                                              search
    drafts                    <-------------  one block: token ids, scores, counts ..

A key is a logit's bits in an order-preserving form, followed by the complement of the token id, so
ties are broken by token id. Nothing else synchronizes with the accelerator. Page-locked buffers are
kept per thread and reused.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core

if TYPE_CHECKING:
    import torch


Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

_LOW = 0xFFFFFFFF
_NAN = 0x7FFFFFFF  # greater than every number


class _PinnedBuffer(threading.local):
    """A page-locked buffer per thread that grows to the largest request."""

    def __init__(self) -> None:
        self._buffer: torch.Tensor | None = None
        self._in_use: torch.cuda.Event | None = None

    def take(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        """(size,) elements, after the last copy that used them has finished."""
        if self._in_use is not None:
            self._in_use.synchronize()
            self._in_use = None
        if self._buffer is None or self._buffer.numel() < size:
            self._buffer = _allocate_pinned(size, dtype)
        return self._buffer[:size]

    def release_after(self, event: torch.cuda.Event) -> None:
        """Delays the next use of the buffer until the event."""
        self._in_use = event


_from_device = _PinnedBuffer()
_to_device = _PinnedBuffer()


def top_k_on_device(
    logits: torch.Tensor, top_k: int, log_softmax: bool
) -> tuple[Int32Array, Float32Array]:
    """Exact top-k on the tensor's device, with one copy of k columns to the host.

    Args:
        logits: (.., V) float32, float16 or bfloat16.
        top_k: k, 1..V.
        log_softmax: Scores are log probabilities over the vocabulary, else raw logits.

    Returns:
        token_ids (rows, k) int32 and scores (rows, k) float32, sorted by descending score, ties by
        ascending token id; on the host.

    Raises:
        ValueError: NaN or +inf; the message names row and token.
    """
    packed = pack_top_k(logits.detach().reshape(-1, logits.shape[-1]), top_k, log_softmax)
    return unpack_top_k(copy_to_host(packed), top_k)


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


def unpack_top_k(packed: Int64Array, top_k: int) -> tuple[Int32Array, Float32Array]:
    """Output of pack_top_k -> token_ids (rows, k) int32 and scores (rows, k) float32."""
    keys = packed[:, :top_k]
    token_ids = (_LOW - (keys & _LOW)).astype(np.int32)
    ordered = (keys >> 32).astype(np.int32)
    scores = np.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).view(np.float32)
    bad = ~(scores[:, 0] < np.inf)
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"head_logits: NaN or +inf at row {row}, token {token_ids[row, 0]}; expected finite "
            "logits, or -inf for masked tokens. Check the head that computed them"
        )
    if packed.shape[1] > top_k:
        total = packed[:, top_k:].astype(np.int32).view(np.float32)
        scores = scores - np.where(np.isinf(total), np.float32(0), total)  # all tokens masked
    return token_ids, scores


def copy_to_host(packed: torch.Tensor) -> Int64Array:
    """Copies a tensor to the host and synchronizes.

    The result may be in a buffer of the calling thread, valid until the thread's next call.
    """
    if not packed.is_cuda:
        return packed.cpu().numpy()
    import torch

    buffer = _from_device.take(packed.numel(), packed.dtype).view(packed.shape)
    buffer.copy_(packed, non_blocking=True)
    torch.cuda.current_stream(packed.device).synchronize()
    return buffer.numpy()


def copy_to_device(arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Copies arrays to the device, asynchronously and in one block.

    Args:
        arrays: Arrays of any shapes, and of types that torch supports.
        device: The device of the head logits.

    Returns:
        Tensors of the same shapes and types; on an accelerator they share one block of memory.
    """
    import torch

    if device.type != "cuda":
        return [torch.from_numpy(array).to(device) for array in arrays]
    starts = [0, *itertools.accumulate(_aligned(array.nbytes) for array in arrays)]
    buffer = _to_device.take(starts[-1], torch.uint8)
    memory = buffer.numpy()
    for array, start in zip(arrays, starts, strict=False):
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        memory[start : start + array.nbytes] = flat
    block, copied = _upload(buffer, device)
    _to_device.release_after(copied)
    return [
        block[start : start + array.nbytes]
        .view(torch.from_numpy(array[:0]).dtype)
        .view(array.shape)
        for array, start in zip(arrays, starts, strict=False)
    ]


def _aligned(num_bytes: int) -> int:
    """Rounded up to 16 bytes, so that the next array may have any type."""
    return -(-num_bytes // 16) * 16


def _allocate_pinned(size: int, dtype: torch.dtype) -> torch.Tensor:
    import torch

    return torch.empty(size, dtype=dtype, pin_memory=True)


def _upload(buffer: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.cuda.Event]:
    """Copies the buffer to the device; returns an event after which it may be reused."""
    import torch

    with torch.cuda.device(device):
        block = buffer.to(device, non_blocking=True)
        event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
    return block, event


@cache
def use_torch_threads() -> None:
    """Makes the core's parallel calls run on torch's threads, as many as torch is set to.

    For callers whose logits torch has just computed on the CPU. Torch's threads spin for some
    milliseconds after each call, so other threads would share cores with them. Where torch has one
    thread, in forked children, and with a torch before 2.10, which does not offer its threads, the
    core uses threads of its own.
    """
    library = ctypes.CDLL(sys.modules["torch"]._C.__file__)  # finds what it was linked with too
    try:
        functions = library.torch_parallel_for, library.torch_get_num_threads
    except AttributeError:
        return
    _core.use_thread_team(*map(_address, functions))


def _address(function: Any) -> int:
    value = ctypes.cast(function, ctypes.c_void_p).value
    assert value is not None
    return value
