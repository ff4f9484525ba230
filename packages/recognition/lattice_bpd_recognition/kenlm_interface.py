"""KenLM's Python interface over the LMs of lattice-bpd.

``install()`` replaces ``kenlm`` by this module for code that imports it later, such as
pyctcdecode. Scores are log10, as KenLM's; words are separated by ASCII white space.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.lm.arpa_files import open_arpa
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.text_input import LM_MAGIC

__all__ = [
    "ARPALoadComplain",
    "Config",
    "FullScoreReturn",
    "LanguageModel",
    "LoadMethod",
    "Model",
    "State",
    "install",
]

MISSING_UNK = -100.0
"""log10 probability of unknown words for an LM whose ``<unk>`` has none, as in KenLM."""

State = _core.WordState


class LoadMethod(IntEnum):
    """How KenLM reads a binary file. LM files are mapped, whatever it is."""

    LAZY = 0
    POPULATE_OR_LAZY = 1
    POPULATE_OR_READ = 2
    READ = 3
    PARALLEL_READ = 4


class ARPALoadComplain(IntEnum):
    """What KenLM warns of when it reads ARPA text; nothing is printed here."""

    ALL = 0
    EXPENSIVE = 1
    NONE = 2


class Config:
    """Settings of KenLM; they change nothing here, since nothing is printed and files are mapped.

    Attributes:
        load_method: a LoadMethod.
        show_progress: whether progress is shown.
        arpa_complain: an ARPALoadComplain.
    """

    def __init__(self) -> None:
        self.load_method = LoadMethod.POPULATE_OR_READ
        self.show_progress = True
        self.arpa_complain = ARPALoadComplain.ALL


class FullScoreReturn(NamedTuple):
    """The score of one word.

    Attributes:
        log_prob: log10 probability.
        ngram_length: length of the n-gram that it is the probability of.
        oov: whether the word is unknown.
    """

    log_prob: float
    ngram_length: int
    oov: bool

    def __repr__(self) -> str:
        """As KenLM's."""
        return f"FullScoreReturn({self.log_prob}, {self.ngram_length}, {self.oov})"


class Model(_core.WordScorer):
    """An n-gram LM over words, with the methods of ``kenlm.Model``.

    Args:
        path: ARPA text (plain, or compressed by gzip or zstd), or an LM file that has words: of
            ``ngram train --words``, ``ngram convert --words`` or :meth:`save`.
        config: ignored; see Config.

    Raises:
        OSError: the file cannot be opened.
        FormatError: it is no such file; of a binary file of KenLM the message says what to do.
    """

    def __init__(self, path: str | bytes | os.PathLike[str], config: Config | None = None) -> None:
        del config
        if not isinstance(path, (str, bytes, os.PathLike)):
            raise TypeError(f"kenlm.Model: path is a {type(path).__name__}; expected str")
        name = os.fsdecode(path)
        self.lm = read_word_lm(name)
        self.path = os.fsencode(os.path.abspath(name))  # noqa: PTH100
        super().__init__(self.lm._core, MISSING_UNK)

    @property
    def order(self) -> int:
        """n: histories have up to n - 1 words."""
        return self.lm.order

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes an LM file with the words, which is mapped when it is read.

        Raises:
            OSError: it cannot be written.
        """
        self.lm.save(path)

    # The core's own methods: one call in Python takes as long as a score.
    __contains__ = _core.WordScorer.__dict__["contains"]
    score = _core.WordScorer.__dict__["fast_score"]
    BaseScore = _core.WordScorer.__dict__["fast_base_score"]

    def full_scores(
        self, sentence: str | bytes, bos: bool = True, eos: bool = True
    ) -> Iterator[tuple[float, int, bool]]:
        """(log10 probability, n-gram length, whether it is unknown) of each word, and of ``</s>``.

        Args:
            sentence: words, without ``<s>`` and ``</s>``.
            bos: whether the sentence starts after ``<s>``.
            eos: whether ``</s>`` is scored.
        """
        return iter(self.word_scores(sentence, bos, eos))

    def perplexity(self, sentence: str | bytes) -> float:
        """10 ** (-log10 probability / number of words with ``</s>``)."""
        log_prob, words, _ = self.score_texts([sentence], True, True, 1)
        return float(10.0 ** (-float(log_prob[0]) / _LN10 / (int(words[0]) + 1)))

    def scores(
        self,
        sentences: Sequence[str | bytes],
        bos: bool = True,
        eos: bool = True,
        *,
        threads: int = 0,
    ) -> npt.NDArray[np.float64]:
        """The log10 probability of each sentence, all in one call; KenLM has no such method.

        Args:
            sentences: N of them.
            bos: as in full_scores; likewise eos.
            eos: see bos.
            threads: 0 for every core.

        Returns:
            (N,) float64.

        Raises:
            TypeError: one sentence, which is no list; or others than str and bytes in it.
        """
        if isinstance(sentences, (str, bytes)):
            raise TypeError("Model.scores: one sentence; expected a list of them, or use score")
        log_probs: npt.NDArray[np.float64]
        log_probs, _, _ = self.score_texts(list(sentences), bos, eos, threads)
        return log_probs / _LN10

    def BeginSentenceWrite(self, state: State) -> None:  # noqa: N802
        """Sets a state to that after ``<s>``."""
        self.set_start(state, True)

    def NullContextWrite(self, state: State) -> None:  # noqa: N802
        """Sets a state to that of no history."""
        self.set_start(state, False)

    def BaseFullScore(  # noqa: N802
        self, in_state: State, word: str | bytes, out_state: State
    ) -> FullScoreReturn:
        """Scores a word after in_state, and sets out_state to the state after it."""
        return FullScoreReturn(*self.base_full_score(in_state, word, out_state))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the path."""
        return type(self), (self.path,)

    def __repr__(self) -> str:
        """As KenLM's."""
        return f"<Model from {os.path.basename(self.path)!r}>"  # noqa: PTH119


LanguageModel = Model
_LN10 = float(np.log(10.0))


def read_word_lm(path: str | os.PathLike[str], *, need_words: bool = True) -> NGramLM:
    """Reads an LM with words: ARPA text, whose words are numbered in file order, or an LM file.

    Args:
        path: the file.
        need_words: whether an LM file without words is refused.

    Raises:
        OSError: the file cannot be opened.
        FormatError: another format, or an LM file without words; the message says what to do.
    """
    name = os.fspath(path)
    with open(name, "rb") as file:  # noqa: PTH123
        magic = file.read(len(LM_MAGIC))
    if magic == LM_MAGIC:
        lm = NGramLM.load(name)
        if need_words and lm._core.words is None:
            raise _core.FormatError(
                f"{name}: the LM has token ids without words; expected one of ngram train --words "
                "or ngram convert --words, or give it words (NGramLM.with_words) and save it"
            )
        return lm
    with open_arpa(name) as plain:
        words = _core.read_arpa_words(plain)
        core = _core.read_arpa(plain, None, words, None, None, None)
    return NGramLM(_core.with_words(core, b"".join(word + b"\n" for word in words)))


def install() -> None:
    """Replaces ``kenlm`` by this module: ``import kenlm`` gives it from now on.

    Raises:
        RuntimeError: pyctcdecode is imported already, and has taken ``kenlm`` as it was.
    """
    taken = sys.modules.get("pyctcdecode.language_model")
    if taken is not None and getattr(taken, "kenlm", None) is not sys.modules[__name__]:
        raise RuntimeError(
            "lattice_bpd_recognition.install: pyctcdecode is imported already, with another "
            "kenlm or none; call install() before the first import of pyctcdecode"
        )
    sys.modules["kenlm"] = sys.modules[__name__]
