"""A KenLM model as a transition scorer."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd.draft.scorers.protocol import Int32Array, Int64Array, TransitionScorer
from lattice_bpd.extensions import require
from lattice_bpd.lm.training import optional_id
from lattice_bpd.vocabulary import StrPath, Vocab, read_words

_LN10 = math.log(10.0)
_SPECIAL = {"<s>", "</s>", "<unk>"}


class KenlmScorer(TransitionScorer):
    """ln P of a KenLM binary or ARPA file, read by the kenlm module (extra ``kenlm``).

    A history state is a `kenlm.State` for each row. Words that the model lacks score as its
    ``<unk>``. Pickles hold the path of the file, which must be there when they are read.

    Args:
        path: the file, of any type that the installed kenlm reads.
        vocab: the word of each token id: words, a tokenizer, or a file of either; see
            :func:`lattice_bpd.lm.read_words`. Without it the model's words must be decimal token
            ids ("17").
        vocab_size: V. With vocab it may exceed the number of words, as a model's embedding often
            does; those token ids score as ``<unk>``. None without vocab: not checked against the
            target's.
        bos: whether the contexts start with ``<s>``.

    Raises:
        ImportError: kenlm is not installed.
        OSError: the file cannot be read, or is none of KenLM's.
        ValueError: a vocab_size below the number of words, or words none of which the model has.
    """

    def __init__(
        self,
        path: StrPath,
        vocab: Vocab | None = None,
        *,
        vocab_size: int | None = None,
        bos: bool = True,
    ) -> None:
        self._kenlm = require("kenlm", "kenlm")
        self._path = name = os.path.abspath(path)  # noqa: PTH100
        if not Path(name).is_file():
            raise FileNotFoundError(f"{name}: no such file; expected a KenLM binary or ARPA file")
        try:
            self._model: Any = self._kenlm.Model(name)
        except OSError as error:
            raise OSError(
                f"{name}: kenlm cannot read it ({error}); expected a KenLM binary or ARPA file"
            ) from error
        self.vocab_size = optional_id("KenlmScorer: vocab_size", vocab_size)
        self._words = None if vocab is None else read_words(vocab)
        if self._words is not None:
            self._check_words(self._words)
            self.vocab_size = self.vocab_size or len(self._words)
        self.bos = bos

    def _check_words(self, words: list[str]) -> None:
        if self.vocab_size is not None and self.vocab_size < len(words):
            raise ValueError(
                f"KenlmScorer: vocab has {len(words)} words, vocab_size is {self.vocab_size}; "
                "expected as many, or more"
            )
        if not any(word in self._model for word in words if word not in _SPECIAL):
            raise ValueError(
                f"KenlmScorer: {self._path} has none of the vocab's {len(words)} words (such as "
                f"{words[len(words) // 2][:60]!r}), so all would score as <unk>; take the "
                "vocabulary that the LM was trained with"
            )

    def __reduce__(self) -> tuple[type[KenlmScorer], tuple[Any, ...], dict[str, Any]]:
        """Pickles hold the path and the words; the file is opened again."""
        state = {"_words": self._words, "vocab_size": self.vocab_size, "bos": self.bos}
        return type(self), (self._path,), state

    def start(self, contexts: Sequence[Sequence[int]]) -> list[Any]:
        """See TransitionScorer."""
        return [self._read(context) for context in contexts]

    def score(self, state: list[Any], candidates: Int32Array) -> npt.NDArray[np.float64]:
        """See TransitionScorer; (R, k) float64.

        Raises:
            ValueError: a negative token id.
        """
        after = self._kenlm.State()
        log10 = [
            [self._model.BaseScore(before, self._word(token), after) for token in row]
            for before, row in zip(state, candidates.tolist(), strict=True)
        ]
        return _LN10 * np.array(log10, np.float64).reshape(candidates.shape)

    def advance(self, state: list[Any], rows: Int64Array, token_ids: Int32Array) -> list[Any]:
        """See TransitionScorer."""
        pairs = zip(rows.tolist(), token_ids.tolist(), strict=True)
        return [self._step(state[row], token) for row, token in pairs]

    def _read(self, context: Sequence[int]) -> Any:
        state = self._kenlm.State()
        tokens = context[max(0, len(context) - self._model.order) :]
        if self.bos and len(tokens) == len(context):
            self._model.BeginSentenceWrite(state)
        else:
            self._model.NullContextWrite(state)
        for token in tokens:
            state = self._step(state, int(token))
        return state

    def _step(self, state: Any, token: int) -> Any:
        after = self._kenlm.State()
        self._model.BaseScore(state, self._word(token), after)
        return after

    def _word(self, token: int) -> str:
        if self._words is None:
            return str(token)
        if token < 0:
            raise ValueError(f"KenlmScorer: token id {token}; expected 0 or above")
        return self._words[token] if token < len(self._words) else "<unk>"
