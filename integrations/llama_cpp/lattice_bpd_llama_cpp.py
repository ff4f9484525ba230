"""Drafts for llama.cpp's Python package: a mixture of n-gram LMs and the text so far.

    model = load("model.gguf", NGramLM.load("corpus.lm"), n_ctx=2048)

llama-cpp-python calls its `draft_model` with all tokens so far and verifies the chain that it
returns. It hands over no hidden states, so draft heads cannot be used there.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.arguments import check_int, check_number
from lattice_bpd.draft.gates import Gates
from lattice_bpd.draft.mixture import make_mixture, source_names
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.vocabulary import check_same_ids

_ANY = 1 << 21  # more tokens than any model has
_ROUNDS = 5  # measurements of each call
_MOST = 1024  # tokens of a draft
_GOOD = 0.9  # probability of each token of a good draft
_LEAST_GAIN = 1.15  # in tokens per second, expected of good drafts, and of each that is proposed
_LOGGER = logging.getLogger(__name__)


def load(
    path: str | os.PathLike[str], lm: NGramLM | None = None, *, num_tokens: int = 10, **options: Any
) -> Any:
    """A `llama_cpp.Llama` with drafts where they pay, else a plain one.

    Loads the model with `logits_all=True` and measures (`NGramDraftModel.of`). The logits of all
    tokens are computed for drafts only, since they make prompts slower; where no draft pays the
    model is loaded again without.

    Args:
        path: the GGUF file.
        lm: n-gram LM over the model's token ids; None: the text alone.
        num_tokens: tokens of the longest draft, up to 1024.
        options: of `Llama`.

    Raises:
        ImportError: llama-cpp-python is not installed.
        TypeError, ValueError: as `NGramDraftModel.of`, or options that leave nothing to draft for.
    """
    from llama_cpp import Llama

    if options.get("draft_model") or options.get("vocab_only"):
        raise ValueError(
            "load: found draft_model or vocab_only; expected neither: load sets draft_model of a "
            "whole model; use llama_cpp.Llama for yours"
        )
    path = os.fsdecode(path)
    NGramDraftModel(lm, num_tokens=num_tokens)  # what is wrong with these is said at once
    model: Any = Llama(path, **{**options, "logits_all": True})
    drafts = NGramDraftModel.of(model, lm, num_tokens=num_tokens)
    if drafts.pays:
        model.draft_model = drafts
    if options.get("logits_all"):
        return model
    if not drafts.pays:
        model.close()
        return Llama(path, **options)
    read = model.eval

    def eval_prompt_or_draft(tokens: Sequence[int]) -> None:
        model._logits_all = len(tokens) <= num_tokens + 1
        try:
            read(tokens)
            if not model._logits_all:  # where log probabilities are read
                row = model._ctx.get_logits()
                model.scores[model.n_tokens - 1] = np.ctypeslib.as_array(row, (model.n_vocab(),))
        finally:
            model._logits_all = True

    model.eval = eval_prompt_or_draft
    return model


class NGramDraftModel:
    """The most probable tokens under a mixture of n-gram LM and the text so far.

    Has the interface of `llama_cpp.llama_speculative.LlamaDraftModel`, for one text at a time.

    Args:
        lm: n-gram LM over the model's token ids; None: the text alone.
        num_tokens: tokens of the longest draft, up to 1024.
        min_prob: a draft ends before the first prefix of a smaller probability.
        vocab_size: tokens of the model, `Llama.n_vocab()`; others are not drafted. None: any.
        costs: (num_tokens + 1,) time of a call of the model that reads 1, 2, .. tokens, as of
            `measure_costs`. Drafts are as long as gives most tokens per second, and none is
            proposed where none pays though each token is right 9 times of 10. None: by min_prob.

    Attributes:
        pays: whether drafts are proposed.

    Raises:
        TypeError: lm is no NGramLM, or an option of another type.
        ValueError: an option out of range, or an LM of another model.
    """

    def __init__(
        self,
        lm: NGramLM | None = None,
        *,
        num_tokens: int = 10,
        min_prob: float = 0.3,
        vocab_size: int | None = None,
        costs: Sequence[float] | None = None,
    ) -> None:
        num_tokens = check_int("NGramDraftModel: num_tokens", num_tokens, 1, _MOST)
        min_prob = check_number("NGramDraftModel: min_prob", min_prob, positive=True)
        if min_prob > 1.0:
            raise ValueError(f"NGramDraftModel: min_prob is {min_prob}; expected 1 or less")
        if vocab_size is not None:
            vocab_size = check_int("NGramDraftModel: vocab_size", vocab_size, 1, _ANY)
        if costs is not None:
            costs = [
                check_number("NGramDraftModel: costs", one, positive=True)
                for one in np.ravel(costs)
            ]
            if len(costs) != num_tokens + 1:
                raise ValueError(
                    f"NGramDraftModel: costs has {len(costs)} times; expected {num_tokens + 1}, "
                    "of calls that read 1, 2, .. tokens"
                )
        if lm is not None and not isinstance(lm, NGramLM):
            raise TypeError(f"NGramDraftModel: lm is {lm!r}; expected an NGramLM: NGramLM.load(..)")
        if lm is not None and vocab_size is not None:
            check_same_ids("NGramDraftModel", "LM", lm.vocab_size, vocab_size)
        self._costs = None if costs is None else np.array(costs, np.float64)
        good = np.cumsum(_GOOD ** np.arange(num_tokens + 1))  # expected tokens of a call
        self.pays = self._costs is None or bool(
            (good / self._costs).max() > _LEAST_GAIN / self._costs[0]
        )
        self.num_tokens, self._least = num_tokens, math.log(min_prob)
        self._vocab_size = vocab_size or _ANY
        lms = [] if lm is None else [lm]
        gates = Gates.default(source_names(len(lms), heads=False, text=True, store=False))
        self._mixture = make_mixture(
            self._vocab_size, lms, heads=False, text=True, store=None, gates=gates
        )
        self._drafts = _core.MixtureText(self._mixture)
        self._text: npt.NDArray[np.intc] = np.empty(0, np.intc)

    @classmethod
    def of(cls, model: Any, lm: NGramLM | None = None, *, num_tokens: int = 10) -> NGramDraftModel:
        """A draft model for a loaded model, whose calls are measured (a second or less).

        Logs the times, as a warning where no draft pays; then nothing is drafted.

        Args:
            model: a `llama_cpp.Llama`, loaded with logits_all=True; its text is reset.
            lm: see the class.
            num_tokens: see there.

        Raises:
            TypeError: as the class.
            ValueError: as the class; a model loaded without logits_all=True, with recurrent
                layers, or whose context is too short.
        """
        _check_model("NGramDraftModel", model)
        if getattr(model, "_is_recurrent", False) or getattr(model, "_is_hybrid", False):
            raise ValueError(
                "NGramDraftModel: the model has recurrent layers, whose state cannot drop rejected "
                "drafts; expected attention layers only: use this model without drafts"
            )
        if not getattr(model, "_logits_all", True):
            raise ValueError(
                "NGramDraftModel: the model was loaded without logits_all=True, so it keeps the "
                "logits of the last token only, and drafts cannot be verified; expected "
                "Llama(.., logits_all=True)"
            )
        size = model.n_vocab()
        cls(lm, num_tokens=num_tokens, vocab_size=size)  # what is wrong is said before measuring
        costs = measure_costs(model, num_tokens)
        drafts = cls(lm, num_tokens=num_tokens, vocab_size=size, costs=costs)
        times = ", ".join(f"{n} {1e3 * costs[n - 1]:.1f}" for n in _sizes(num_tokens))
        if drafts.pays:
            _LOGGER.info("lattice-bpd: milliseconds of a call by its tokens: %s", times)
        else:
            _LOGGER.warning(
                "lattice-bpd: milliseconds of a call by its tokens: %s. A call of several tokens "
                "costs more than it can save, so nothing is drafted. More GPU layers, a newer "
                "llama.cpp or another quantization may change that",
                times,
            )
        return drafts

    def __call__(self, input_ids: npt.NDArray[np.intc], /, **_: Any) -> npt.NDArray[np.intc]:
        """A draft of the tokens after a text.

        Args:
            input_ids: (T,) ints, prompt and output so far.

        Returns:
            (n,) int32, 0 to num_tokens token ids; none for a text with ids below 0 or that the
            model does not have.
        """
        input_ids = np.asarray(input_ids)
        if (
            not self.pays
            or len(input_ids) == 0
            or input_ids.min() < 0
            or input_ids.max() >= self._vocab_size
        ):
            return np.empty(0, np.intc)
        self._read(input_ids)
        tree = _core.search_mixtures(
            [self._drafts], [self.num_tokens], self.num_tokens, is_chain=True
        )[0]
        log_probs = tree.log_probs
        length = 0 if log_probs is None else self._length(np.asarray(log_probs, np.float64))
        return np.array(tree.token_ids[1 : length + 1], np.intc)

    def _length(self, log_probs: npt.NDArray[np.float64]) -> int:
        """How many draft tokens to keep, by their prefixes' log probabilities."""
        if self._costs is None:
            return int((log_probs >= self._least).sum())
        expected = 1.0 + np.concatenate([[0.0], np.cumsum(np.exp(log_probs))])
        rates = expected / self._costs[: len(expected)]
        best = int(np.argmax(rates))
        return best if rates[best] > _LEAST_GAIN * rates[0] else 0

    def _read(self, text: npt.NDArray[np.intc]) -> None:
        """Append the new tokens; to an empty text if this is another one."""
        known = len(self._text)
        if not np.array_equal(text[:known], self._text):
            self._drafts, known = _core.MixtureText(self._mixture), 0
        self._drafts.append(text[known:].tolist())
        self._text = text.copy()  # the caller writes into its array


def measure_costs(model: Any, num_tokens: int) -> list[float]:
    """Seconds of a call of a `llama_cpp.Llama` that reads 1, 2, .. num_tokens + 1 tokens.

    The least of some calls each, since other processes only add; between the measured sizes a line.
    The model's text is reset.

    Raises:
        TypeError: another model, or num_tokens is no int.
        ValueError: num_tokens out of range, or a context that is too short.
    """
    _check_model("measure_costs", model)
    num_tokens = check_int("measure_costs: num_tokens", num_tokens, 1, _MOST)
    sizes, token = _sizes(num_tokens), max(model.token_bos(), 0)
    context = min(model.n_ctx(), len(model.input_ids))  # llama.cpp pads its own, not that of Python
    if context < 2 * (num_tokens + 1):
        raise ValueError(
            f"measure_costs: the context has {context} tokens; expected "
            f"{2 * (num_tokens + 1)} or more, or a smaller num_tokens"
        )
    times: dict[int, list[float]] = {size: [] for size in sizes}
    model.reset()
    model.eval([token] * (num_tokens + 1))  # also the first call, which is slow
    for _ in range(_ROUNDS):
        for size in sizes:
            model.n_tokens = num_tokens + 1  # the next call drops what follows
            start = time.perf_counter()
            model.eval([token] * size)
            times[size].append(time.perf_counter() - start)
    model.reset()
    least = [min(times[size]) for size in sizes]
    return [float(one) for one in np.interp(np.arange(1, num_tokens + 2), sizes, least)]


def _check_model(where: str, model: Any) -> None:
    if not hasattr(model, "n_vocab"):
        raise TypeError(f"{where}: model is {model!r}; expected a llama_cpp.Llama")


def _sizes(num_tokens: int) -> list[int]:
    """The calls to measure, in tokens."""
    return sorted({size for size in (1, 2, 4, 8, num_tokens + 1) if size <= num_tokens + 1})
