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
    ) -> None:
        if num_tokens < 1 or not 1 <= min_match <= max_match or not 0.0 < min_prob <= 1.0:
            raise ValueError(
                f"NGramDraftModel: num_tokens is {num_tokens}, min_match {min_match}, max_match "
                f"{max_match}, min_prob {min_prob}; expected 1 or more, min_match <= max_match, "
                "and a probability above 0"
            )
        self.num_tokens, self.min_match, self.max_match = num_tokens, min_match, max_match
        self._likely = None if lm is None else LikelyTokens(lm, 1)
        self._least = math.log(min_prob)
        self._index = SuffixIndex(max_match)

    def __call__(self, input_ids: npt.NDArray[np.intc], /, **_: Any) -> npt.NDArray[np.intc]:
        """A draft of the tokens after a text.

        Args:
            input_ids: (T,) ints, prompt and output so far.

        Returns:
            (n,) int32, 0 to num_tokens token ids.
        """
        text = input_ids.tolist()
        position, length = self._read(text).find()
        if length >= self.min_match:
            draft = self._index.follow(position, self.num_tokens)
        else:
            draft = self._continue(text)
        return np.array(draft, np.intc)

    def _read(self, text: list[int]) -> SuffixIndex:
        """The index of the text; a new one unless the text continues the last one."""
        known = self._index.tokens
        if text[: len(known)] != known:
            self._index, known = SuffixIndex(self.max_match), []
        self._index.extend(text[len(known) :])
        return self._index

    def _continue(self, text: list[int]) -> list[int]:
        """The LM's most likely token after each prefix."""
        draft: list[int] = []
        if self._likely is None:
            return draft
        total = 0.0
        while len(draft) < self.num_tokens:
            token, log_prob = self._likely.after([*text, *draft])[0]
            total += log_prob
            if total < self._least:
                break
            draft.append(token)
        return draft
