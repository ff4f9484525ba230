"""The top-k selection of every instruction set, through the binding, against sorting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lattice_bpd import _core

INF = float("inf")
BLOCK = 64


@pytest.fixture(params=_core.top_k_instruction_sets())
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set that runs here, in turn."""
    _core.set_top_k_instruction_set(request.param)
    yield request.param
    _core.set_top_k_instruction_set("")


def sort_rows(logits: Any, top_k: int) -> tuple[Any, Any]:
    """The oracle: a stable sort by falling logit leaves equal ones by rising token id."""
    token_ids = np.argsort(-logits, axis=1, kind="stable")[:, :top_k]
    return token_ids, np.take_along_axis(logits, token_ids, axis=1)


def check(logits: Any, top_k: int, kind: str = "float32", stored: Any = None) -> None:
    selected = _core.select_top_k(logits if stored is None else stored, kind, top_k, False)
    expected = sort_rows(logits, top_k)
    np.testing.assert_array_equal(selected[0], expected[0])
    np.testing.assert_array_equal(selected[1], expected[1])


@pytest.mark.usefixtures("instruction_set")
class TestEachInstructionSet:
    @pytest.mark.parametrize("top_k", [1, 4, 16, 64, 256])
    @pytest.mark.parametrize("vocab_size", [50_257, 256_000])
    def test_vocabularies_of_real_models(
        self, rng: np.random.Generator, vocab_size: int, top_k: int
    ) -> None:
        logits = rng.standard_normal((2, vocab_size)).astype(np.float32)
        logits[1] = np.round(logits[1] * 4)  # dozens of thousands of ties
        check(logits, top_k)

    @pytest.mark.parametrize("blocks", [1, 2, 8, 9, 16])
    def test_rows_around_the_borders_of_blocks(self, rng: np.random.Generator, blocks: int) -> None:
        for vocab_size in range(blocks * BLOCK - 2, blocks * BLOCK + 3):
            logits = rng.integers(-5, 5, (3, vocab_size)).astype(np.float32)
            logits[rng.random(logits.shape) < 0.2] = -INF
            for top_k in (1, 16, vocab_size):
                check(logits, top_k)

    def test_all_masked_and_one_finite(self) -> None:
        logits = np.full((3, 1000), -INF, np.float32)
        logits[1, 999] = -3.0
        logits[2, 0] = 3.0
        for top_k in (1, 2, 16, 1000):
            check(logits, top_k)

    def test_strides(self, rng: np.random.Generator) -> None:
        base = rng.integers(-50, 50, (6, 900)).astype(np.float32)
        for logits in (base[:, ::3], base[::-1, ::-1], base[1::2], base.T, base[:, 1:-1]):
            check(logits, min(16, logits.shape[1]))
        check(np.broadcast_to(base[:, :1], (6, 200)), 16)
        halves = base.astype(np.float16)
        for logits in (halves[:, ::2], halves[:, ::-1], halves.T):
            check(logits.astype(np.float32), min(16, logits.shape[1]), "float16", logits)

    @pytest.mark.parametrize("kind", ["float16", "bfloat16"])
    def test_half_precision(self, rng: np.random.Generator, kind: str) -> None:
        values = rng.standard_normal((4, 5003)).astype(np.float32)
        if kind == "float16":
            stored = values.astype(np.float16)
            values = stored.astype(np.float32)
        else:
            stored = (values.view(np.uint32) >> 16).astype(np.uint16)
            values = (stored.astype(np.uint32) << 16).view(np.float32)
        for top_k in (1, 16, 256, 5003):
            check(values, top_k, kind, stored)

    @pytest.mark.parametrize("bad", [np.nan, -np.nan, INF])
    def test_nan_and_infinity_anywhere(self, rng: np.random.Generator, bad: float) -> None:
        for index in (0, 1, 63, 64, 65, 1000, 2046, 2047):
            logits = rng.standard_normal((2, 2048)).astype(np.float32)
            logits[1, index] = bad
            logits[1, index + 1 :: 7] = INF  # the first one is named
            for row in (logits, logits[:, ::1], np.repeat(logits, 2, axis=1)[:, ::2]):
                name = r"\+inf" if bad == INF else "NaN"
                with pytest.raises(ValueError, match=rf"{name} at row 1, token {index};"):
                    _core.select_top_k(row, "float32", 16, False)

    def test_log_softmax(self, rng: np.random.Generator) -> None:
        logits = (rng.standard_normal((3, 50_257)) * 6).astype(np.float32)
        logits[2, ::2] = -INF
        total = np.log(np.exp(logits.astype(np.float64)).sum(axis=1, keepdims=True))
        token_ids, scores = sort_rows(logits, 16)
        selected = _core.select_top_k(logits, "float32", 16, True)
        np.testing.assert_array_equal(selected[0], token_ids)
        np.testing.assert_allclose(selected[1], scores - total, rtol=0, atol=2e-6)


def test_an_instruction_set_that_is_unknown() -> None:
    assert _core.top_k_instruction_sets()[-1] == "scalar"
    with pytest.raises(ValueError, match=r"\"mmx\" does not run here; expected one of .*scalar"):
        _core.set_top_k_instruction_set("mmx")
