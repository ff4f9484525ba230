"""Drafts for llama.cpp's Python package: a mixture of n-gram LMs and the text so far.

    from llama_cpp import Llama
    model = Llama("model.gguf", draft_model=NGramDraftModel(NGramLM.load("corpus.lm")))

llama-cpp-python calls its `draft_model` with all tokens so far and verifies the chain that it
returns. It hands over no hidden states, so draft heads cannot be used there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.draft.gates import Gates
from lattice_bpd.draft.mixture import make_mixture, source_names
from lattice_bpd.lm.ngram import NGramLM

_ANY = 1 << 21  # more tokens than any model has


class NGramDraftModel:
    """The most probable tokens under a mixture of n-gram LM and the text so far.

    Has the interface of `llama_cpp.llama_speculative.LlamaDraftModel`, for one text at a time.

    Args:
        lm: n-gram LM over the model's token ids; None: the text alone.
        num_tokens: tokens of the longest draft.
        min_prob: a draft ends before the first prefix of a smaller probability.
        vocab_size: tokens of the model, `Llama.n_vocab()`; others are not drafted. None: any.

    Raises:
        ValueError: an option out of range.
    """

    def __init__(
        self,
        lm: NGramLM | None = None,
        *,
        num_tokens: int = 10,
        min_prob: float = 0.3,
        vocab_size: int | None = None,
    ) -> None:
        if num_tokens < 1 or not 0.0 < min_prob <= 1.0:
            raise ValueError(
                f"NGramDraftModel: num_tokens is {num_tokens}, min_prob {min_prob}; expected 1 or "
                "more, and a probability above 0"
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

    def __call__(self, input_ids: npt.NDArray[np.intc], /, **_: Any) -> npt.NDArray[np.intc]:
        """A draft of the tokens after a text.

        Args:
            input_ids: (T,) ints, prompt and output so far.

        Returns:
            (n,) int32, 0 to num_tokens token ids; none for a text with ids below 0 or that the
            model does not have.
        """
        if len(input_ids) == 0 or input_ids.min() < 0 or input_ids.max() >= self._vocab_size:
            return np.empty(0, np.intc)
        self._read(input_ids)
        tree = _core.search_mixtures(
            [self._drafts], [self.num_tokens], self.num_tokens, is_chain=True
        )[0]
        log_probs = tree.log_probs
        length = 0 if log_probs is None else int((log_probs >= self._least).sum())
        return np.array(tree.token_ids[1 : length + 1], np.intc)

    def _read(self, text: npt.NDArray[np.intc]) -> None:
        """Append the new tokens; to an empty text if this is another one."""
        known = len(self._text)
        if not np.array_equal(text[:known], self._text):
            self._drafts, known = _core.MixtureText(self._mixture), 0
        self._drafts.append(text[known:].tolist())
        self._text = text.copy()  # the caller writes into its array
