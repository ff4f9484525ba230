"""The weights of an LM that minimize the word error rate on references.

Word errors are jiwer's. They are counted once for each hypothesis; a choice of weights then is an
argmax over each list, so that hundreds of choices take seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_bpd.extensions import require
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.train.corpus import split_words
from lattice_bpd_recognition.nbest import Hypothesis, Text, check_lists, score_texts

_ALPHAS = np.concatenate([[0.0], np.geomspace(0.01, 10.0, 19)])
_BETAS = np.linspace(-0.5, 1.5, 17)
_ROUNDS, _STEPS = 3, np.linspace(-1.0, 1.0, 7)
_SAMPLES, _SEED = 1000, 59


@dataclass(frozen=True)
class Tuning:
    """Weights, and the word error rates with them.

    Rates are errors / reference words; intervals hold 95 % of bootstrap samples of utterances.

    Attributes:
        alpha: weight of ln P.
        beta: added for each word.
        wer: after rescoring with these weights, on the references that they were chosen on.
        wer_interval: of it.
        held_out: of each half of the utterances with weights chosen on the other half, which is
            what new text of this kind may expect.
        held_out_interval: of it.
        first_pass: the best hypotheses of the first pass.
        first_pass_interval: of it.
        gain_interval: of first_pass - held_out, of the same utterances.
        oracle: the best hypothesis of each list, which no weights can beat.
        utterances: number of them.
        reference_words: number of them.
    """

    alpha: float
    beta: float
    wer: float
    wer_interval: tuple[float, float]
    held_out: float
    held_out_interval: tuple[float, float]
    first_pass: float
    first_pass_interval: tuple[float, float]
    gain_interval: tuple[float, float]
    oracle: float
    utterances: int
    reference_words: int

    def lines(self) -> Iterator[str]:
        """A table."""
        yield (
            f"alpha {self.alpha:.4g}, beta {self.beta:.4g}: {self.utterances:,} utterances, "
            f"{self.reference_words:,} words"
        )
        for name, rate, interval in (
            ("first pass", self.first_pass, self.first_pass_interval),
            ("rescored, weights of the other half", self.held_out, self.held_out_interval),
            ("rescored, these weights", self.wer, self.wer_interval),
        ):
            low, high = interval
            yield f"{name:36} WER {rate:7.2%}   95 % within {low:.2%} .. {high:.2%}"
        low, high = self.gain_interval
        yield f"{'gain on the other half':36}     {self.first_pass - self.held_out:7.2%}   " + (
            f"95 % within {low:.2%} .. {high:.2%}"
        )
        yield f"{'best hypothesis of each list':36} WER {self.oracle:7.2%}"

    def to_json(self) -> dict[str, Any]:
        """All attributes."""
        return dataclasses.asdict(self)


class _Table(NamedTuple):
    """(U, N) arrays of U utterances, -inf scores where a list is shorter than N."""

    scores: npt.NDArray[np.float64]
    log_probs: npt.NDArray[np.float64]
    words: npt.NDArray[np.float64]
    errors: npt.NDArray[np.int64]

    def choose(self, alpha: float, beta: float) -> npt.NDArray[np.int64]:
        """(U,) errors of the best hypotheses."""
        totals = self.scores + alpha * self.log_probs + beta * self.words
        best = totals.argmax(axis=1)[:, None]
        chosen: npt.NDArray[np.int64] = np.take_along_axis(self.errors, best, axis=1)[:, 0]
        return chosen

    def rows(self, keep: npt.NDArray[np.bool_]) -> _Table:
        """Those of some utterances."""
        return _Table(self.scores[keep], self.log_probs[keep], self.words[keep], self.errors[keep])


def tune_weights(
    hypotheses: Sequence[Sequence[Hypothesis | tuple[Text, float]]],
    references: Sequence[str],
    lm: NGramLM | Any,
    *,
    bos: bool = True,
    eos: bool = True,
    normalize: Callable[[str], str] | None = None,
    threads: int = 0,
) -> Tuning:
    """Finds alpha and beta of :func:`rescore_nbest` for n-best lists with references.

    Args:
        hypotheses: for each utterance its hypotheses, one at least: (text, score) each.
        references: for each utterance what was said.
        lm: as for rescore_nbest; likewise bos, eos, normalize and threads.
        bos: see lm.
        eos: see lm.
        normalize: see lm; also what is done to references and hypotheses before words are compared.
        threads: see lm.

    Raises:
        ImportError: jiwer is not installed (extra ``tune`` of lattice-bpd-recognition).
        TypeError: texts of token ids, or hypotheses of another form.
        ValueError: as rescore_nbest; fewer than two utterances, as many references, an utterance
            without hypotheses, or references without words.
    """
    lists = check_lists("tune_weights", hypotheses)
    if len(lists) != len(references) or len(lists) < 2:
        raise ValueError(
            f"tune_weights: {len(references)} references for {len(lists)} utterances; expected one "
            "each, of two utterances at least"
        )
    flat = [hypothesis for one in lists for hypothesis in one]
    if not all(isinstance(hypothesis.text, str) for hypothesis in flat):
        raise TypeError("tune_weights: texts of token ids; expected words, whose errors count")
    empty = next((u for u, one in enumerate(lists) if not one), None)
    if empty is not None:
        raise ValueError(f"tune_weights: utterance {empty} has no hypotheses; leave it out")
    form = normalize or str
    references = [form(text) for text in references]
    lengths = np.array([len(split_words(text)) for text in references])
    if lengths.sum() == 0:
        raise ValueError("tune_weights: the references have no words")
    texts = [str(hypothesis.text) for hypothesis in flat]
    scores = score_texts(texts, lm, bos=bos, eos=eos, normalize=normalize, threads=threads)
    repeated = [text for text, one in zip(references, lists, strict=True) for _ in one]
    errors = count_errors(repeated, [form(text) for text in texts])
    table = _make_table(lists, scores.log_probs, scores.num_words, errors)
    alpha, beta = _search(table)
    held_out = np.zeros(len(lists), np.int64)
    for fold in (0, 1):
        other = np.arange(len(lists)) % 2 != fold
        held_out[~other] = table.rows(~other).choose(*_search(table.rows(other)))
    chosen, first = table.choose(alpha, beta), table.choose(0.0, 0.0)
    total = int(lengths.sum())
    return Tuning(
        alpha, beta,
        chosen.sum() / total, _interval(chosen, lengths),
        held_out.sum() / total, _interval(held_out, lengths),
        first.sum() / total, _interval(first, lengths),
        _interval(first - held_out, lengths),
        table.errors.min(axis=1).sum() / total, len(lists), total,
    )  # fmt: skip


def count_errors(references: Sequence[str], texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """(N,) substitutions, insertions and deletions of words between N pairs, by jiwer.

    Raises:
        ImportError: jiwer is not installed.
    """
    jiwer = require("jiwer", "lattice-bpd-recognition[tune]")
    words = [[split_words(text) for text in side] for side in (references, texts)]
    errors = np.array([len(text) for text in words[1]], np.int64)  # of empty references
    rows = [i for i, text in enumerate(words[0]) if text]
    if rows:  # jiwer separates words at single spaces
        result = jiwer.process_words(*([" ".join(side[i]) for i in rows] for side in words))
        for i, chunks in zip(rows, result.alignments, strict=True):
            errors[i] = sum(
                max(
                    chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx
                )
                for chunk in chunks
                if chunk.type != "equal"
            )
    return errors


def _make_table(
    lists: Sequence[Sequence[Hypothesis]],
    log_probs: npt.NDArray[np.float64],
    words: npt.NDArray[np.int64],
    errors: npt.NDArray[np.int64],
) -> _Table:
    shape = len(lists), max(map(len, lists))
    table = _Table(
        np.full(shape, -np.inf), np.zeros(shape), np.zeros(shape),
        np.full(shape, np.iinfo(np.int64).max // 2, np.int64),
    )  # fmt: skip
    at = 0
    for u, one in enumerate(lists):
        end = at + len(one)
        table.scores[u, : len(one)] = [hypothesis.score for hypothesis in one]
        table.log_probs[u, : len(one)] = log_probs[at:end]
        table.words[u, : len(one)] = words[at:end]
        table.errors[u, : len(one)] = errors[at:end]
        at = end
    return table


def _search(table: _Table) -> tuple[float, float]:
    """The weights of the fewest errors, the smaller ones where they are equal.

    A grid scaled to the spread of both scores within lists, then finer ones around its best.
    """
    known = np.isfinite(table.scores)
    scale = _spread(table.scores, known) / max(_spread(table.log_probs, known), 1e-9) or 1.0
    per_word = -table.log_probs[known].sum() / max(table.words[known].sum(), 1.0)
    best, at = _best(
        table, [(a * scale, a * scale * per_word * b + 0.0) for a in _ALPHAS for b in _BETAS]
    )
    alpha_step = max(at[0] / 2, scale * float(_ALPHAS[1]))
    beta_step = max(at[0], scale * float(_ALPHAS[1])) * per_word / 8
    for _ in range(_ROUNDS):
        around = [
            (max(at[0] + a * alpha_step, 0.0), at[1] + b * beta_step + 0.0)
            for a in _STEPS
            for b in _STEPS
        ]
        errors, found = _best(table, around)
        if errors < best:
            best, at = errors, found
        alpha_step, beta_step = alpha_step / 3, beta_step / 3
    return at


def _best(table: _Table, choices: Sequence[tuple[float, float]]) -> tuple[int, tuple[float, float]]:
    ranked = [(int(table.choose(*one).sum()), abs(one[0]), abs(one[1]), one) for one in choices]
    errors, _, _, at = min(ranked)
    return errors, (float(at[0]), float(at[1]))


def _spread(values: npt.NDArray[np.float64], known: npt.NDArray[np.bool_]) -> float:
    """The standard deviation within lists."""
    masked = np.where(known, values, np.nan)
    rows = known.sum(axis=1) > 1
    if not rows.any():
        return 0.0
    return float(np.sqrt(np.nanmean(np.nanvar(masked[rows], axis=1))))


def _interval(errors: npt.NDArray[np.int64], lengths: npt.NDArray[Any]) -> tuple[float, float]:
    """What 95 % of the rates of bootstrap samples lie in."""
    random = np.random.default_rng(_SEED)
    rates = []
    for _ in range(_SAMPLES):
        rows = random.integers(0, len(errors), len(errors))
        words = lengths[rows].sum()
        rates.append(errors[rows].sum() / words if words else 0.0)
    low, high = np.percentile(rates, [2.5, 97.5])
    return float(low), float(high)
