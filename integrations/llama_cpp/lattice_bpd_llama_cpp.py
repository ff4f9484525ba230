"""Drafts for llama.cpp's Python package, by n-gram lookup and n-gram LM.

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

from lattice_bpd.decode.drafters.continuation import LikelyTokens
from lattice_bpd.decode.drafters.suffix_index import SuffixIndex
from lattice_bpd.lm.ngram import NGramLM


class NGramDraftModel:
    """What followed the last tokens earlier in the text, else likely tokens of an n-gram LM.

    Has the interface of `llama_cpp.llama_speculative.LlamaDraftModel`, for one text at a time.

    Args:
        lm: n-gram LM over the model's token ids; None: lookup alone.
        num_tokens: tokens of the longest draft.
        min_match: a shorter match is no match.
        max_match: tokens of the longest match.
        min_prob: a draft of the LM ends before the first prefix of a smaller probability.
        vocab_size: tokens of the model, `Llama.n_vocab()`; a draft of an LM with a larger
            vocabulary ends before the first token that the model does not have. None: that of
            the LM.

    Raises:
        ValueError: an option out of range.
    """

    def __init__(
        self,
        lm: NGramLM | None = None,
        *,
        num_tokens: int = 10,
        min_match: int = 2,
        max_match: int = 8,
        min_prob: float = 0.3,
        vocab_size: int | None = None,
    ) -> None:
        if num_tokens < 1 or not 1 <= min_match <= max_match or not 0.0 < min_prob <= 1.0:
            raise ValueError(
                f"NGramDraftModel: num_tokens is {num_tokens}, min_match {min_match}, max_match "
                f"{max_match}, min_prob {min_prob}; expected 1 or more, min_match <= max_match, "
                "and a probability above 0"
            )
        self.num_tokens, self.min_match, self.max_match = num_tokens, min_match, max_match
        self._likely, self._reach, self._lm_size = None, 1, 0
        if lm is not None:
            self._likely = LikelyTokens(lm, 1)
            self._reach, self._lm_size = max(1, lm.order - 1), lm.vocab_size
        self._vocab_size = self._lm_size if vocab_size is None else vocab_size
        self._least = math.log(min_prob)
        self._index = SuffixIndex(max_match)
        self._text: npt.NDArray[np.intc] = np.empty(0, np.intc)

    def __call__(self, input_ids: npt.NDArray[np.intc], /, **_: Any) -> npt.NDArray[np.intc]:
        """A draft of the tokens after a text.

        Args:
            input_ids: (T,) ints, prompt and output so far.

        Returns:
            (n,) int32, 0 to num_tokens token ids.
        """
        self._read(input_ids)
        position, length = self._index.find()
        if length >= self.min_match:
            draft = self._index.follow(position, self.num_tokens)
        else:
            draft = self._continue(input_ids[-self._reach :].tolist())
        return np.array(draft, np.intc)

    def _read(self, text: npt.NDArray[np.intc]) -> None:
        """Adds the new tokens to the index; to an empty one if the text is another."""
        known = len(self._text)
        if not np.array_equal(text[:known], self._text):
            self._index, known = SuffixIndex(self.max_match), 0
        self._index.extend(text[known:].tolist())
        self._text = text.copy()  # the caller writes into its array

    def _continue(self, history: list[int]) -> list[int]:
        """The LM's most likely token after each prefix; none after a token unknown to it."""
        draft: list[int] = []
        if self._likely is None or not all(0 <= token < self._lm_size for token in history):
            return draft
        total = 0.0
        while len(draft) < self.num_tokens:
            token, log_prob = self._likely.after([*history, *draft][-self._reach :])[0]
            total += log_prob
            if total < self._least or token >= self._vocab_size:
                break
            draft.append(token)
        return draft
