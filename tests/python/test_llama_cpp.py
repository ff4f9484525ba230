"""The draft model for llama-cpp-python, in a stand-in for its decoding loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lattice_bpd import NGramLM
from lattice_bpd_llama_cpp import NGramDraftModel

CYCLE = [3, 1, 4, 1, 5, 9, 2, 6]
DraftModel = Callable[..., npt.NDArray[np.intc]]  # llama_cpp.llama_speculative.LlamaDraftModel


def cyclic(text: list[int]) -> int:
    return CYCLE[len(text) % len(CYCLE)]


def decode(
    draft_model: DraftModel, prompt: list[int], count: int, target: Callable[[list[int]], int]
) -> tuple[list[int], int]:
    """Tokens and calls of a target, with the draft model called as `Llama.generate` does."""
    text, calls = list(prompt), 0
    while len(text) < len(prompt) + count:
        draft = draft_model(np.array(text, dtype=np.intc), seed=0)
        assert isinstance(draft, np.ndarray)
        assert draft.dtype == np.intc
        assert draft.ndim == 1
        calls += 1
        for token in [*draft.tolist(), None]:
            right = target(text)
            text.append(right)
            if token != right:
                break
    return text[len(prompt) : len(prompt) + count], calls


@pytest.fixture(scope="module")
def lm() -> NGramLM:
    return NGramLM.train([CYCLE * 50], 4, vocab_size=10, smoothing="witten_bell")


def test_repeated_text_is_drafted() -> None:
    text, calls = decode(NGramDraftModel(), [3], 80, cyclic)
    assert text == [cyclic([0] * n) for n in range(1, 81)]
    assert calls < 20  # the first cycle without drafts, then 11 tokens each


def test_the_lm_drafts_what_was_never_seen(lm: NGramLM) -> None:
    draft = NGramDraftModel(lm, num_tokens=5)(np.array([3, 1, 4], np.intc))
    assert draft.tolist() == [1, 5, 9, 2, 6]
    assert NGramDraftModel(num_tokens=5)(np.array([3, 1, 4], np.intc)).tolist() == []


def test_improbable_drafts_are_short(lm: NGramLM) -> None:
    context = np.array([3, 1, 4], np.intc)
    longest = NGramDraftModel(lm, min_prob=1e-9)(context).tolist()
    lengths = []
    for least in (0.01, 0.5, 0.9, 0.97, 0.999999):
        draft = NGramDraftModel(lm, min_prob=least)(context).tolist()
        assert draft == longest[: len(draft)]
        lengths.append(len(draft))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1] == 0


def test_tokens_that_the_lm_does_not_know(lm: NGramLM) -> None:
    """Such as added tokens of a chat format, whose ids are after those of the LM."""
    model = NGramDraftModel(lm, num_tokens=5)
    assert model(np.array([3, 1, -1], np.intc)).tolist() == []
    assert model(np.array([99, 3, 1, 4], np.intc)).tolist() == [1, 5, 9, 2, 6]  # out of its reach
    assert model(np.array([10, 7, 8, 10, 7], np.intc)).tolist()[:1] == [8]  # repeated


def test_only_tokens_of_the_model_are_drafted(lm: NGramLM) -> None:
    context = np.array([3, 1, 4], np.intc)
    assert NGramDraftModel(lm, vocab_size=10)(context).tolist()[:4] == [1, 5, 9, 2]
    assert set(NGramDraftModel(lm, vocab_size=9, min_prob=1e-9)(context).tolist()) <= set(range(9))
    assert NGramDraftModel(lm, vocab_size=1)(context).tolist() == []


def test_another_text_starts_again() -> None:
    model = NGramDraftModel(num_tokens=3)
    assert model(np.array([7, 8, 9, 7, 8], np.intc)).tolist()[:1] == [9]
    assert model(np.array([7, 8, 1, 7, 8], np.intc)).tolist()[:1] == [1]
    assert model(np.array([7, 8, 1, 6], np.intc)).tolist() == []


@pytest.mark.parametrize(
    "options",
    [{"num_tokens": 0}, {"min_prob": 0.0}, {"min_prob": 1.1}],
)
def test_options_out_of_range_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))}"):
        NGramDraftModel(**options)
