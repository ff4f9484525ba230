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
    context = np.array([3, 1, 4], np.intc)
    assert NGramDraftModel(num_tokens=5)(context).tolist() == []
    assert NGramDraftModel(lm, vocab_size=9, min_prob=1e-9)(context).max() < 9
    model = NGramDraftModel(lm, num_tokens=5)
    assert model(context).tolist() == [1, 5, 9, 2, 6]
    # tokens that the LM does not know, such as those of a chat format
    assert model(np.array([3, 1, -1], np.intc)).tolist() == []
    assert model(np.array([99, 3, 1, 4], np.intc)).tolist() == [1, 5, 9, 2, 6]  # out of its reach
    assert model(np.array([10, 7, 8, 10, 7], np.intc)).tolist()[:1] == [8]  # repeated


def test_another_text_starts_again() -> None:
    model = NGramDraftModel(num_tokens=3)
    assert model(np.array([7, 8, 9, 7, 8], np.intc)).tolist()[:1] == [9]
    assert model(np.array([7, 8, 1, 7, 8], np.intc)).tolist()[:1] == [1]
    assert model(np.array([7, 8, 1, 6], np.intc)).tolist() == []


ON_CPU = {1: 7.0, 2: 17.0, 4: 28.0, 8: 46.0, 11: 62.0}  # SmolLM2 Q4_1, two cores
ON_GPU = {1: 7.0, 2: 7.2, 4: 7.5, 8: 8.0, 11: 9.0}


class Engine:
    """A `Llama` whose calls take the milliseconds of its path's machine, by tokens.

    Attributes:
        calls: tokens before and in each call, and whether it computed the logits of all.
    """

    def __init__(self, path: str, *, logits_all: bool = False, n_ctx: int = 64) -> None:
        times = {"cpu": ON_CPU, "gpu": ON_GPU}[path]
        self._times = list(times), [1e-3 * time for time in times.values()]
        self.now, self.n_tokens, self._logits_all = 0.0, 0, logits_all
        self.calls: list[tuple[int, int, bool]] = []
        self.draft_model: Any = None
        self.is_closed = False
        self.scores = np.zeros((n_ctx, 10), np.float32)
        self.input_ids = np.zeros(n_ctx, np.intc)
        row = np.arange(10, dtype=np.float32)
        self._ctx = SimpleNamespace(
            get_logits=lambda: row.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        )

    def reset(self) -> None:
        self.n_tokens = 0

    def seconds(self, tokens: Any) -> Any:
        return np.interp(tokens, *self._times)

    def eval(self, tokens: list[int]) -> None:
        self.calls.append((self.n_tokens, len(tokens), self._logits_all))
        self.n_tokens += len(tokens)
        self.now += float(self.seconds(len(tokens)))

    def n_vocab(self) -> int:
        return 10

    def n_ctx(self) -> int:
        return -(-len(self.input_ids) // 256) * 256  # as llama.cpp pads it

    def token_bos(self) -> int:
        return 1

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("machine", ["cpu", "gpu"])
def test_calls_are_measured_at_start(
    machine: str, monkeypatch: pytest.MonkeyPatch, lm: NGramLM, caplog: pytest.LogCaptureFixture
) -> None:
    model, is_gpu = Engine(machine, logits_all=True), machine == "gpu"
    monkeypatch.setattr(lattice_bpd_llama_cpp.time, "perf_counter", lambda: model.now)
    assert np.allclose(measure_costs(model, 10), model.seconds(range(1, 12)))
    assert model.n_tokens == 0
    assert {start for start, *_ in model.calls[1:]} == {11}  # at one text length
    with caplog.at_level("INFO"):
        drafts = NGramDraftModel.of(model, lm)
    assert drafts.pays == is_gpu
    assert ("nothing is drafted" in caplog.text) != is_gpu
    context = np.array([3, 1, 4], np.intc)
    assert drafts(context).tolist()[:5] == ([1, 5, 9, 2, 6] if is_gpu else [])


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
    model.calls.clear()
    model.eval([1] * 20)
    assert model.calls[0][2] == logits_all  # a prompt
    assert model.scores[19].tolist() == (
        [*range(10)] if model._logits_all != logits_all else [0] * 10
    )
    model.eval([1] * 11)
    assert model.calls[1][2] == model._logits_all


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
        NGramDraftModel.of(Engine("gpu"))
    with pytest.raises(ValueError, match="the context has 64 tokens; expected 82 or more"):
        NGramDraftModel.of(Engine("gpu", logits_all=True), num_tokens=40)
    with pytest.raises(ValueError, match="the context has 21 tokens; expected 22 or more"):
        NGramDraftModel.of(Engine("gpu", logits_all=True, n_ctx=21))
    for function in (NGramDraftModel.of, lambda model: measure_costs(model, 3)):
        with pytest.raises(TypeError, match=r"model is 'x'; expected a llama_cpp.Llama"):
            function("x")
    model = Engine("gpu", logits_all=True)
    model._is_hybrid = True  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="recurrent layers, whose state cannot drop rejected"):
        NGramDraftModel.of(model)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("num_tokens", value) for value in (0, -1, 1025, 10**12, 2.5, "3", True, None)],
        *[("min_prob", value) for value in (0.0, -1.0, 1.1, float("nan"), "x", True, None)],
        *[("vocab_size", value) for value in (0, -1, 10**12, 2.5, "x", True)],
        *[("costs", value) for value in ([], [1.0], 5, [0.0] * 11, [float("nan")] * 11, "x")],
    ],
)
def test_options_out_of_range_are_named(name: str, value: Any) -> None:
    wrong = pytest.raises((TypeError, ValueError), match=rf"NGramDraftModel: {name} .*; expected")
    with wrong:
        NGramDraftModel(**{name: value})
    if name == "num_tokens":
        with pytest.raises((TypeError, ValueError), match="measure_costs: num_tokens is"):
            measure_costs(Engine("gpu", logits_all=True), value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lm": "own.lm"}, "expected an NGramLM"),
        ({"num_tokens": 0}, "num_tokens is 0"),
        ({"draft_model": NGramDraftModel()}, "found draft_model or vocab_only"),
        ({"vocab_only": True}, "found draft_model or vocab_only"),
    ],
)
def test_what_is_wrong_is_said_before_a_model_is_loaded(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(Llama=None))
    with pytest.raises((TypeError, ValueError), match=message):
        load("model.gguf", **options)


def test_lms_of_other_models_are_refused(lm: NGramLM) -> None:
    for size in (4, 21):
        with pytest.raises(ValueError, match=f"a vocabulary of 10, the target one of {size}; exp"):
            NGramDraftModel(lm, vocab_size=size)
    model = Engine("gpu", logits_all=True)
    with pytest.raises(ValueError, match="a vocabulary of 99, the target one of 10; expected"):
        NGramDraftModel.of(model, NGramLM.train([CYCLE], 2, vocab_size=99, smoothing="witten_bell"))
    assert model.calls == []  # nothing is measured first
    for size in (9, 20, None):  # padding
        NGramDraftModel(lm, vocab_size=size)
    path: Any = "corpus.lm"
    with pytest.raises(TypeError, match=r"'corpus.lm'; expected an NGramLM: NGramLM.load"):
        NGramDraftModel(path)


def test_torch_is_not_imported() -> None:
    code = "import sys, lattice_bpd_llama_cpp; print({'torch', 'transformers'} & set(sys.modules))"
    folder = Path(lattice_bpd_llama_cpp.__file__).parent
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder
    )
    assert found.stdout.strip() == "set()"
