"""The core's parallel work on torch's threads, where torch runs a model on the CPU."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

from lattice_bpd import _core


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
