"""Top-k selection: the core and the path for accelerators against sorting, and what that copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensorMode,
)

from lattice_bpd import _core
from lattice_bpd.lattice.logits import (
    pack_top_k,
    select_top_k,
    top_k_on_device,
)

INF = float("inf")


def random_logits(rng: np.random.Generator) -> Any:
    """(rows, V) float32 with ties, both zeros, masked tokens, tiny and huge numbers."""
    rows, vocab_size = int(rng.integers(1, 6)), int(rng.integers(1, 200))
    values = rng.choice([-3e38, -1.5, -1e-40, -0.0, 0.0, 1e-40, 1.5, 2.0, 3e38], (rows, vocab_size))
    real = rng.standard_normal(values.shape)
    values = np.where(rng.random(values.shape) < rng.random(), real, values)
    return np.where(rng.random(values.shape) < 0.1, -INF, values).astype(np.float32)


def sort_rows(logits: Any, top_k: int) -> tuple[Any, Any]:
    """The oracle: a stable sort by falling logit leaves equal ones by rising token id."""
    token_ids = np.argsort(-logits + 0.0, axis=1, kind="stable")[:, :top_k]
    return token_ids, np.take_along_axis(logits, token_ids, axis=1)


def check(actual: tuple[Any, Any], expected: tuple[Any, Any]) -> None:
    np.testing.assert_array_equal(actual[0], expected[0])
    np.testing.assert_array_equal(actual[1], expected[1])
    assert (actual[0].dtype, actual[1].dtype) == (np.int32, np.float32)


@pytest.mark.parametrize("seed", range(150))
def test_core_and_device_path_sort(seed: int, rng: np.random.Generator) -> None:
    logits = random_logits(rng)
    top_k = int(rng.integers(1, logits.shape[1] + 1))
    expected = sort_rows(logits, top_k)
    check(_core.select_top_k(logits, "float32", top_k, False), expected)
    check(top_k_on_device(torch.from_numpy(logits), top_k, False), expected)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("seed", range(20))
def test_half_precision(seed: int, rng: np.random.Generator, kind: str) -> None:
    tensor = torch.from_numpy(random_logits(rng)).clamp(max=6e4).to(getattr(torch, kind))
    top_k = int(rng.integers(1, tensor.shape[1] + 1))
    expected = sort_rows(tensor.float().numpy(), top_k)
    selected = select_top_k(tensor, top_k, log_softmax=False, where="test")
    check((selected.token_ids[0], selected.scores[0]), expected)
    check(top_k_on_device(tensor, top_k, False), expected)


@pytest.mark.parametrize("seed", range(20))
def test_log_softmax(seed: int, rng: np.random.Generator) -> None:
    logits = np.clip(random_logits(rng), -50, 50)
    logits[:, 0] = np.where(np.isinf(logits[:, 0]), 0, logits[:, 0])
    top_k = int(rng.integers(1, logits.shape[1] + 1))
    token_ids, scores = sort_rows(logits, top_k)
    total = np.log(np.exp(logits.astype(np.float64)).sum(axis=1, keepdims=True))
    for selected in (
        _core.select_top_k(logits, "float32", top_k, True),
        top_k_on_device(torch.from_numpy(logits), top_k, True),
    ):
        np.testing.assert_array_equal(selected[0], token_ids)
        np.testing.assert_allclose(selected[1], scores - total, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, -np.nan, INF])
@pytest.mark.parametrize("token", [0, 3, 9])
@pytest.mark.parametrize("top_k", [1, 4, 10])
def test_nan_and_infinity_are_refused(bad: float, token: int, top_k: int) -> None:
    logits = np.arange(20, dtype=np.float32).reshape(2, 10) - 30
    logits[1, token] = bad
    with pytest.raises(ValueError, match=rf"row 1, token {token}"):
        _core.select_top_k(logits, "float32", top_k, False)
    with pytest.raises(ValueError, match=r"NaN or \+inf"):
        top_k_on_device(torch.from_numpy(logits), top_k, False)


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
