"""Top-k on an accelerator: one copy down, one copy up, and nothing else waits.

No accelerator is needed: fake CUDA tensors show that no step needs a value, and a tensor that
claims to be on one shows what is copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lattice_bpd.lattice import logits as device_module
from lattice_bpd.lattice.logits import (
    copy_to_device,
    copy_to_host,
    pack_top_k,
)

torch = pytest.importorskip("torch")
from torch._subclasses.fake_tensor import (  # noqa: E402
    DataDependentOutputException,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

INF = float("inf")


class Recorder(TorchDispatchMode):
    """Names of the operations that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class FakeStream:
    """Counts how often it is waited for."""

    def __init__(self) -> None:
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1


class ClaimsCuda(torch.Tensor):
    """A host tensor that says it is on an accelerator."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> FakeStream:
    """Page-locked buffers are plain ones, the current stream is a fake."""
    stream = FakeStream()
    monkeypatch.setattr(device_module, "_from_device", device_module._PinnedBuffer())
    monkeypatch.setattr(device_module, "_to_device", device_module._PinnedBuffer())
    monkeypatch.setattr(
        device_module, "_allocate_pinned", lambda size, dtype: torch.empty(size, dtype=dtype)
    )
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: stream)
    return stream


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("log_softmax", [False, True])
def test_packing_stays_on_the_device(kind: str, log_softmax: bool) -> None:
    with FakeTensorMode():
        rows = torch.empty(8, 100, dtype=getattr(torch, kind), device="cuda")
        packed = pack_top_k(rows, 16, log_softmax)  # a value asked for would raise
        assert packed.device.type == "cuda"
        assert (tuple(packed.shape), packed.dtype) == ((8, 16 + log_softmax), torch.int64)
        with pytest.raises(DataDependentOutputException):
            bool((rows < 0).all())  # that is what the test would catch


def test_one_copy_down_into_a_buffer_that_is_reused(stream: FakeStream) -> None:
    packed = torch.arange(12).reshape(3, 4).as_subclass(ClaimsCuda)
    with Recorder() as recorder:
        first = copy_to_host(packed)
    assert first.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert recorder.names.count("copy_") == 1
    assert not {"_to_copy", "_local_scalar_dense"} & set(recorder.names)
    assert stream.waits == 1
    second = copy_to_host((packed[:2] + 1).as_subclass(ClaimsCuda))
    assert second.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert np.shares_memory(first, second)
    assert not np.shares_memory(first, copy_to_host(packed.repeat(2, 1).as_subclass(ClaimsCuda)))


def test_one_copy_up_whose_buffer_waits_for_it(
    stream: FakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads: list[FakeStream] = []

    def upload(buffer: Any, device: Any) -> tuple[Any, FakeStream]:
        assert device == torch.device("cuda", 1)
        uploads.append(FakeStream())
        return buffer.clone(), uploads[-1]

    monkeypatch.setattr(device_module, "_upload", upload)
    rng = np.random.default_rng(0)
    for _ in range(2):
        arrays = (
            rng.integers(-1, 99, (2, 3, 4), dtype=np.int32),
            np.array([[1.5, -2.5, -INF]] * 2, np.float32),
            np.array([2, 2], np.int32),
            rng.random((1, 5, 5)) < 0.5,
            np.zeros((2, 0), np.float32),
            rng.standard_normal((3, 4)).T,
        )
        tensors = copy_to_device(arrays, torch.device("cuda", 1))
        for tensor, array in zip(tensors, arrays, strict=True):
            np.testing.assert_array_equal(tensor.numpy(), array)
            assert tensor.numpy().dtype == array.dtype
    assert [event.waits for event in uploads] == [1, 0]  # before the buffer was filled again
    assert stream.waits == 0


def test_host_tensors_come_back_as_they_are() -> None:
    arrays = (np.zeros((1, 2, 3), np.int32), np.zeros((1, 2), np.float32), np.ones(1, np.int32))
    tensors = copy_to_device(arrays, torch.device("cpu"))
    for tensor, array in zip(tensors, arrays, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
