"""The draft model for llama-cpp-python, in a stand-in for its decoding loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch")

from lattice_bpd import NGramLM
from lattice_bpd.decode.drafters.continuation import LikelyTokens
from lattice_bpd.decode.drafters.suffix_index import SuffixIndex
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
    context = [3, 1, 4]
    longest = NGramDraftModel(lm, min_prob=1e-9)(np.array(context, np.intc)).tolist()
    costs = [lm.log_prob(token, [*context, *longest[:n]]) for n, token in enumerate(longest)]
    totals = np.cumsum(costs)
    assert len(longest) == 10
    between = np.exp((np.concatenate([[0.0], totals[:-1]]) + totals) / 2)
    for length, least in enumerate(between.tolist()):  # above the prefix of length + 1 tokens
        draft = NGramDraftModel(lm, min_prob=least)(np.array(context, np.intc))
        assert draft.tolist() == longest[:length]


def test_tokens_that_the_lm_does_not_know_end_drafting(lm: NGramLM) -> None:
    """Such as added tokens of a chat format, whose ids are after those of the LM."""
    model = NGramDraftModel(lm, num_tokens=5)
    for unknown in (10, 99, -1):
        assert model(np.array([3, 1, unknown], np.intc)).tolist() == []
    assert model(np.array([99, 3, 1, 4], np.intc)).tolist() == [1, 5, 9, 2, 6]  # out of its reach
    assert model(np.array([10, 7, 8, 10, 7], np.intc)).tolist() == [8, 10, 7, 8, 10]  # repeated


def test_only_tokens_of_the_model_are_drafted(lm: NGramLM) -> None:
    context = np.array([3, 1, 4], np.intc)
    assert NGramDraftModel(lm, vocab_size=10)(context).tolist()[:4] == [1, 5, 9, 2]
    assert NGramDraftModel(lm, vocab_size=9)(context).tolist() == [1, 5]
    assert NGramDraftModel(lm, vocab_size=1)(context).tolist() == []


def test_the_end_of_a_text_decides(lm: NGramLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The LM gets its history alone, and the index the tokens that are new."""
    model, extended, histories = NGramDraftModel(lm, num_tokens=4), [], []
    after, extend = LikelyTokens.after, SuffixIndex.extend

    def watched_after(self: LikelyTokens, text: list[int]) -> list[tuple[int, float]]:
        histories.append(len(text))
        return after(self, text)

    def watched_extend(self: SuffixIndex, tokens: list[int]) -> None:
        extended.append(len(tokens))
        extend(self, tokens)

    monkeypatch.setattr(LikelyTokens, "after", watched_after)
    monkeypatch.setattr(SuffixIndex, "extend", watched_extend)
    buffer = (np.random.default_rng(3).permutation(40) % 10).astype(np.intc)  # reused by the caller
    for length in (5, 8, 9):
        model(buffer[:length])
    buffer[0] += 1
    model(buffer[:9])
    assert extended == [5, 3, 1, 9]
    assert max(histories) == lm.order - 1


def test_another_text_starts_again() -> None:
    model = NGramDraftModel(num_tokens=3)
    assert model(np.array([7, 8, 9, 7, 8], np.intc)).tolist() == [9, 7, 8]
    assert model(np.array([7, 8, 1, 7, 8], np.intc)).tolist() == [1, 7, 8]
    assert model(np.array([7, 8, 1, 7], np.intc)).tolist() == []


@pytest.mark.parametrize(
    "options",
    [{"num_tokens": 0}, {"min_match": 0}, {"min_match": 9}, {"min_prob": 0.0}, {"min_prob": 1.1}],
)
def test_options_out_of_range_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))}"):
        NGramDraftModel(**options)
