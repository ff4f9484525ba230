"""A stand-in for CUDA graphs: it replays the same operations on the same memory.

What was no operation on tensors stays as it was when the call was recorded, and what waits for the
device is refused. As a plug-in of pytest (`make test-recorded`) it records the calls of all models.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lattice_bpd.verify import graphs

WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "item")


class Operations(TorchDispatchMode):
    """Records operations with the tensors that they read and wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in WAITS:
            raise RuntimeError(f"{func} waits for the device")
        output = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, output))
        return output


class Recording:
    """Runs recorded operations again: what was no operation on tensors stays as it was."""

    made = replayed = 0

    def __init__(self, body: Any) -> None:
        type(self).made += 1
        with Operations() as operations:
            self.output = body()
        self.calls = operations.calls

    def replay(self) -> Any:
        type(self).replayed += 1
        for func, args, kwargs, output in self.calls:
            again = func(*args, **kwargs)
            for new, old in zip(tree_leaves(again), tree_leaves(output), strict=True):
                if isinstance(old, torch.Tensor) and new.data_ptr() != old.data_ptr():
                    old.copy_(new)
        return self.output


def pytest_configure() -> None:
    """Record on a CPU."""
    graphs.is_recordable = lambda _device: True
    graphs.RecordedCalls.new_recording = lambda _own, body: Recording(body)  # type: ignore[method-assign,assignment]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail where nothing was replayed."""
    print(f"\n{Recording.made:,} calls recorded, {Recording.replayed:,} replayed")
    if Recording.replayed == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
