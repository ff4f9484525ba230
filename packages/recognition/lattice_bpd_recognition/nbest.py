"""n-best lists of any decoder, rescored by an n-gram LM."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.arguments import check_number
from lattice_bpd.lm.ngram import NGramLM, core_of
from lattice_bpd.token_ids import to_token_ids
from lattice_bpd_recognition.kenlm_interface import MISSING_UNK

Text = str | Sequence[int]


class Hypothesis(NamedTuple):
    """What a decoder recognized, with its score; any pair of text and score will do.

    Attributes:
        text: words separated by white space, or token ids of the LM.
        score: log probability or other score of the first pass; higher is better.
    """

    text: Text
    score: float


@dataclass(frozen=True)
class Rescored:
    """A hypothesis after rescoring.

    Attributes:
        text: as given.
        score: of the first pass.
        log_prob: ln P of the text by the LM, with ``</s>``.
        num_words: words or token ids.
        num_unknown: of them, those that the LM does not list.
        total: score + alpha * log_prob + beta * num_words.
        index: position in the list of the first pass.
    """

    text: Text
    score: float
    log_prob: float
    num_words: int
    num_unknown: int
    total: float
    index: int


class LmScores(NamedTuple):
    """Scores of N texts: (N,) float64 ln P, (N,) int64 words, (N,) int64 unknown words."""

    log_probs: npt.NDArray[np.float64]
    num_words: npt.NDArray[np.int64]
    num_unknown: npt.NDArray[np.int64]


def rescore_nbest(
    hypotheses: Sequence[Sequence[Hypothesis | tuple[Text, float]]],
    lm: NGramLM | Any,
    alpha: float,
    beta: float = 0.0,
    *,
    bos: bool = True,
    eos: bool = True,
    normalize: Callable[[str], str] | None = None,
    threads: int = 0,
) -> list[list[Rescored]]:
    """Sorts n-best lists by score + alpha * ln P(text) + beta * words, best first.

    Hypotheses of equal totals keep their order. Words that the LM does not list are ``<unk>``; an
    ``<unk>`` without a probability of its own has log10 -100, as in KenLM.

    Args:
        hypotheses: for each utterance its hypotheses, (text, score) each.
        lm: an NGramLM, with words for texts of words; or a kenlm_interface.Model.
        alpha: weight of the LM's natural log probability.
        beta: added for each word (or token id); above 0 it favors longer texts.
        bos: whether texts start after ``<s>``.
        eos: whether ln P is that of the text and ``</s>``.
        normalize: what is done to texts of words before the LM scores them, such as
            :func:`lattice_bpd.train.words.text_normalizer`.
        threads: 0 for every core.

    Returns:
        For each utterance its hypotheses in their new order.

    Raises:
        TypeError: no LM, or hypotheses of another form.
        ValueError: a score that is NaN or +inf, an LM without words for texts of words, alpha or
            beta that are not finite.
    """
    alpha = check_number("rescore_nbest: alpha", alpha)
    beta = check_number("rescore_nbest: beta", beta)
    lists = check_lists("rescore_nbest", hypotheses)
    flat = [hypothesis for one in lists for hypothesis in one]
    texts = [hypothesis.text for hypothesis in flat]
    scores = score_texts(texts, lm, bos=bos, eos=eos, normalize=normalize, threads=threads)
    first = np.array([hypothesis.score for hypothesis in flat])
    totals = first + alpha * scores.log_probs + beta * scores.num_words
    results, at = [], 0
    for one in lists:
        rows = [
            Rescored(
                hypothesis.text, hypothesis.score, float(scores.log_probs[i]),
                int(scores.num_words[i]), int(scores.num_unknown[i]), float(totals[i]), i - at,
            )
            for i, hypothesis in enumerate(one, at)
        ]  # fmt: skip
        results.append(sorted(rows, key=lambda row: -row.total))
        at += len(one)
    return results


def check_lists(
    where: str, hypotheses: Sequence[Sequence[Hypothesis | tuple[Text, float]]]
) -> list[list[Hypothesis]]:
    """The hypotheses of each utterance.

    Raises:
        TypeError: another form.
        ValueError: a score that is NaN or +inf.
    """
    lists = []
    for u, one in enumerate(hypotheses):
        rows = []
        for i, pair in enumerate(one):
            try:
                text, score = pair
                number = float(score)
            except (TypeError, ValueError, OverflowError):
                raise TypeError(
                    f"{where}: hypothesis {i} of utterance {u} is {pair!r:.100}; expected a list "
                    "of pairs (text, score) for each utterance"
                ) from None
            if math.isnan(number) or number == math.inf:
                raise ValueError(
                    f"{where}: hypothesis {i} of utterance {u} has the score {score}; expected a "
                    "number, higher is better"
                )
            rows.append(Hypothesis(text, number))
        lists.append(rows)
    return lists


def word_scorer(where: str, lm: NGramLM | Any, *, words: bool) -> _core.WordScorer:
    """The core's scorer of an LM.

    Args:
        where: the caller's name, for messages.
        lm: an NGramLM, or a kenlm_interface.Model.
        words: whether it must have words.

    Raises:
        TypeError: not an LM.
        ValueError: an LM that must have words and has none.
    """
    if isinstance(lm, _core.WordScorer):
        return lm
    core = core_of(where, lm)
    if words and core.words is None:
        raise ValueError(
            f"{where}: the LM has token ids without words; give texts of token ids, or an LM with "
            "words (ngram train --words, read_word_lm of ARPA text, NGramLM.with_words)"
        )
    return _core.WordScorer(core, MISSING_UNK)


def score_texts(
    texts: Sequence[Text],
    lm: NGramLM | Any,
    *,
    bos: bool = True,
    eos: bool = True,
    normalize: Callable[[str], str] | None = None,
    threads: int = 0,
) -> LmScores:
    """Scores texts by an LM in one call; arguments as for :func:`rescore_nbest`.

    Raises:
        TypeError, ValueError: as rescore_nbest.
    """
    values: list[Any] = []
    for text in texts:
        if isinstance(text, str):
            values.append(text if normalize is None else normalize(text))
        else:
            values.append(to_token_ids(text, "rescore_nbest: token ids"))
    scorer = word_scorer("rescore_nbest", lm, words=any(isinstance(text, str) for text in texts))
    return LmScores(*scorer.score_texts(values, bos, eos, threads))
