"""Switches cuDNN's attention off while texts are decoded."""

from __future__ import annotations

import threading

import torch


class _WithoutCudnnAttention:
    """Inside, torch takes none of cuDNN's attention, its first choice on NVIDIA's Hopper.

    It makes a plan for each new shape, which takes longer than a call, and most calls have one. The
    setting is the process's: the first thread that enters saves it, the last one restores it.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._saved = threading.Lock(), 0, True

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._saved = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
                torch.backends.cuda.enable_cudnn_sdp(False)

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                torch.backends.cuda.enable_cudnn_sdp(self._saved)


WITHOUT_CUDNN_ATTENTION = _WithoutCudnnAttention()
