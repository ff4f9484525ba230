"""The draft model for llama-cpp-python, in a stand-in for its decoding loop."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lattice_bpd_llama_cpp
from lattice_bpd import NGramLM
from lattice_bpd_llama_cpp import NGramDraftModel, load, measure_costs

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


class Clock:
    """A `Llama` whose calls take the milliseconds of `times` (by tokens, lines between)."""

    def __init__(self, times: dict[int, float], logits_all: bool = True) -> None:
        self.times, self.now, self.n_tokens, self._logits_all = times, 0.0, 0, logits_all
        self.calls: list[tuple[int, int]] = []

    def reset(self) -> None:
        self.n_tokens = 0

    def eval(self, tokens: list[int]) -> None:
        self.calls.append((self.n_tokens, len(tokens)))
        self.n_tokens += len(tokens)
        self.now += 1e-3 * float(
            np.interp(len(tokens), list(self.times), list(self.times.values()))
        )

    def n_vocab(self) -> int:
        return 10

    def n_ctx(self) -> int:
        return 64

    def token_bos(self) -> int:
        return 1


ON_CPU = {1: 7.0, 2: 17.0, 4: 28.0, 8: 46.0, 11: 62.0}  # SmolLM2 Q4_1, two cores
ON_GPU = {1: 7.0, 2: 7.2, 4: 7.5, 8: 8.0, 11: 9.0}


@pytest.mark.parametrize("times", [ON_CPU, ON_GPU])
def test_calls_are_measured_at_start(
    times: dict[int, float], monkeypatch: pytest.MonkeyPatch, lm: NGramLM,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    model = Clock(times)
    monkeypatch.setattr(lattice_bpd_llama_cpp.time, "perf_counter", lambda: model.now)
    assert np.allclose(
        measure_costs(model, 10), 1e-3 * np.interp(range(1, 12), list(times), list(times.values()))
    )
    assert model.n_tokens == 0
    assert {start for start, _ in model.calls[1:]} == {11}  # at one text length
    with caplog.at_level("INFO"):
        drafts = NGramDraftModel.of(model, lm)
    assert "1 7.0, 2 " in caplog.text
    assert drafts.pays == (times is ON_GPU)
    assert ("nothing is drafted" in caplog.text) == (times is ON_CPU)
    context = np.array([3, 1, 4], np.intc)
    assert drafts(context).tolist()[:5] == ([1, 5, 9, 2, 6] if times is ON_GPU else [])


class Engine(Clock):
    """A `Llama` that is loaded from a path; `asked`: logits of all tokens, of each call."""

    def __init__(self, path: str, *, logits_all: bool = False, n_ctx: int = 64) -> None:
        super().__init__({"cpu": ON_CPU, "gpu": ON_GPU}[path], logits_all)
        self.asked: list[bool] = []
        self.draft_model: Any = None
        self.is_closed = False
        self.scores = np.zeros((n_ctx, 10), np.float32)
        row = np.arange(10, dtype=np.float32)
        self._ctx = SimpleNamespace(
            get_logits=lambda: row.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        )

    def eval(self, tokens: list[int]) -> None:
        super().eval(tokens)
        self.asked.append(self._logits_all)

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("logits_all", [False, True])
@pytest.mark.parametrize("machine", ["cpu", "gpu"])
def test_a_model_is_loaded_with_drafts_where_they_pay(
    machine: str, logits_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else as a plain one. The logits of all tokens are for drafts, unless they are asked for."""
    made: list[Engine] = []

    def make(path: str, **options: Any) -> Engine:
        made.append(Engine(path, **options))
        return made[-1]

    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(Llama=make))
    monkeypatch.setattr(lattice_bpd_llama_cpp.time, "perf_counter", lambda: made[-1].now)
    options = {"logits_all": True} if logits_all else {}
    model = load(machine, n_ctx=48, **options)
    assert model is made[-1]
    assert [one.is_closed for one in made] == ([True, False] if len(made) == 2 else [False])
    assert (len(made) == 2) == (machine == "cpu" and not logits_all)
    assert (model.draft_model is not None) == (machine == "gpu")
    assert model._logits_all == (logits_all or machine == "gpu")
    model.asked.clear()
    model.eval([1] * 20)
    assert model.asked == [logits_all]  # a prompt
    assert model.scores[19].tolist() == (
        [*range(10)] if model._logits_all != logits_all else [0] * 10
    )
    model.eval([1] * 11)
    assert model.asked[1:] == [model._logits_all]


def test_models_with_a_recurrent_state_are_refused() -> None:
    model = Clock(ON_GPU)
    model._is_hybrid = True  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="recurrent layers, whose state cannot drop rejected"):
        NGramDraftModel.of(model)


@pytest.mark.parametrize("slope", [0.01, 0.3, 0.5, 0.6])
def test_drafts_are_as_long_as_pays(slope: float, lm: NGramLM) -> None:
    """The length of most expected tokens per second, of all lengths."""
    costs = [1.0 + slope * n for n in range(6)]
    probs = [1.0]
    for n in range(1, 6):  # the probability of each prefix: the least `min_prob` that ends there
        low, high = 0.0, 1.0
        for _ in range(30):
            middle = (low + high) / 2
            draft = NGramDraftModel(lm, num_tokens=5, min_prob=middle)(np.array([3, 1, 4], np.intc))
            low, high = (middle, high) if len(draft) >= n else (low, middle)
        probs.append(low)
    rates = np.cumsum(probs) / costs
    assert rates.max() > 1.15
    model = NGramDraftModel(lm, num_tokens=5, costs=costs)
    assert len(model(np.array([3, 1, 4], np.intc))) == int(rates.argmax())


def test_drafts_that_hardly_pay_are_not_proposed(lm: NGramLM) -> None:
    """After 1 follow 4 and 5 alike: 1.99 expected tokens in a call that takes 1.8 times as long."""
    model = NGramDraftModel(lm, num_tokens=2, costs=[1.0, 1.4, 1.8])
    assert model.pays
    assert model(np.array([1], np.intc)).tolist() == []
    cheaper = NGramDraftModel(lm, num_tokens=2, costs=[1.0, 1.2, 1.4])
    assert len(cheaper(np.array([1], np.intc))) == 2


def test_models_that_cannot_verify_drafts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"loaded without logits_all=True.*expected Llama"):
        NGramDraftModel.of(Clock(ON_GPU, logits_all=False))
    with pytest.raises(ValueError, match="the context has 64 tokens; expected 82 or more"):
        NGramDraftModel.of(Clock(ON_GPU), num_tokens=40)
    with pytest.raises(ValueError, match="expected 11 times above 0"):
        NGramDraftModel(costs=[1.0])


def test_torch_is_not_imported() -> None:
    code = "import sys, lattice_bpd_llama_cpp; print({'torch', 'transformers'} & set(sys.modules))"
    folder = Path(lattice_bpd_llama_cpp.__file__).parent
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder
    )
    assert found.stdout.strip() == "set()"
