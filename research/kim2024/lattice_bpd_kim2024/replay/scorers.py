"""Drafts that a scorer rescores slot by slot: a small causal LM, or its mixture with an n-gram LM.

A scorer reads each recorded text once (`read_with`). Its log probabilities along the greedy output
are all that a replay of one draft needs: the search is that of decoding, and a draft that has left
the output is not accepted any further, whatever follows. Whole drafts (`draft_rescored`) are
searched with the scorer itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lattice_bpd.decode.drafters.neural_scorer import NeuralScorer
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.draft.drafts import Drafts
from lattice_bpd.draft.scorers.greedy import rescore_greedily
from lattice_bpd.draft.scorers.mixture import MixtureScorer
from lattice_bpd.draft.scorers.ngram import NGramScorer
from lattice_bpd.draft.scorers.protocol import TransitionScorer, vocab_size_of
from lattice_bpd.lattice.logits import Candidates
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.token_ids import Int32Array, Int64Array
from lattice_bpd_kim2024.replay.positions import PositionBatch, Proposal, Rescorers

if TYPE_CHECKING:
    from lattice_bpd_kim2024.record.texts import Float64Array, RecordedText

Floats = npt.NDArray[np.floating[Any]]
Scorers = Mapping[str, Mapping[str, TransitionScorer]]
"""Scorers by name, by the strategy that uses them."""

MIXTURE_WEIGHTS = (0.25, 0.5, 1.0)
"""Weights of the n-gram LM that are tried beside the rescorer's weight of 1."""

_TEXTS = 16  # read at once
_SEARCHING = threading.Lock()  # scorers with a KV cache are not safe for threads


def make_scorers(
    neural: Mapping[str, TransitionScorer],
    lms: Mapping[str, NGramLM],
    weights: Sequence[float] = MIXTURE_WEIGHTS,
) -> Scorers:
    """The scorers of the strategies "neural" and "mixture".

    Args:
        neural: rescorers by name, the main one first.
        lms: n-gram LMs by name; the mixtures are of the first one and the main rescorer.
        weights: of the n-gram LM in the mixtures.
    """
    main, lm = dict(list(neural.items())[:1]), dict(list(lms.items())[:1])
    return {"neural": dict(neural), "mixture": make_mixtures(main, lm, weights)}


def make_mixtures(
    neural: Mapping[str, TransitionScorer], lms: Mapping[str, NGramLM], weights: Sequence[float]
) -> dict[str, TransitionScorer]:
    """Mixtures of each rescorer, of weight 1, with each n-gram LM, by `mixture_name`.

    Args:
        neural: rescorers by name.
        lms: n-gram LMs by name.
        weights: of the n-gram LMs.

    Raises:
        ValueError: different vocabularies, or a weight that is not finite.
    """
    ngrams = {name: NGramScorer(lm) for name, lm in lms.items()}
    return {
        mixture_name(name, weight, lm): MixtureScorer([(scorer, 1.0), (ngram, weight)])
        for name, scorer in neural.items()
        for lm, ngram in ngrams.items()
        for weight in weights
    }


def mixture_name(scorer: str, weight: float, lm: str) -> str:
    """The name of a mixture, of the rescorer's and the n-gram LM's names and that LM's weight."""
    return f"{scorer} + {weight:g} {lm}"


def parts_of(scorer: Any) -> list[tuple[Any, float]]:
    """The scorers whose weighted sum a scorer is, with their weights; of others itself, 1."""
    if not isinstance(scorer, MixtureScorer):
        return [(scorer, 1.0)]
    return [
        (part, weight * inner)
        for one, weight in zip(scorer.scorers, scorer.weights, strict=True)
        for part, inner in parts_of(one)
    ]


def max_positions_of(scorer: Any) -> int | None:
    """Longest history of a scorer, in tokens; None if no part of it is a model with a limit."""
    readers = [part.reader for part, _ in parts_of(scorer) if isinstance(part, NeuralScorer)]
    limits = [reader.model.max_positions for reader in readers]
    return min((most for most in limits if most is not None), default=None)


def reads_batches(scorer: Any) -> bool:
    """Whether a scorer takes several contexts at once."""
    readers = [part.reader for part, _ in parts_of(scorer) if isinstance(part, NeuralScorer)]
    return all(reader.refuses_batch() is None for reader in readers)


def read_with(
    texts: Sequence[RecordedText],
    scorers: Mapping[str, TransitionScorer],
    on_text: Callable[[], None] | None = None,
) -> list[RecordedText]:
    """The same texts with the scorers' log probabilities of all candidates.

    Args:
        texts: read once by each scorer, and by each part of mixtures.
        scorers: by name.
        on_text: called after each text that a scorer has read.

    Returns:
        Texts whose `rescored` has these scorers as well, and of mixtures their parts.

    Raises:
        ValueError: a scorer of a vocabulary that does not have all recorded tokens.
        TypeError: a scorer that is not hashable.
    """
    for name, scorer in scorers.items():
        _check_vocabulary(name, scorer, texts)
    parts = dict.fromkeys(part for scorer in scorers.values() for part, _ in parts_of(scorer))
    new = [part for part in parts if not all(part in text.rescored for text in texts)]
    read = {part: _read_texts(part, texts, on_text) for part in new}
    return [
        replace(text, rescored={**text.rescored, **{part: read[part][index] for part in new}})
        for index, text in enumerate(texts)
    ]


def has_read(rescored: Mapping[Any, Any], scorer: Any) -> bool:
    """Whether a scorer, or each part of a mixture, is a key of `rescored`."""
    return all(any(part is one for one in rescored) for part, _ in parts_of(scorer))


def draft_rescored(batch: PositionBatch, rescorers: Rescorers, options: DraftConfig) -> Proposal:
    """The best path slot by slot; see `ScorerDrafter`."""
    found, scorer = batch.top(options.top_k), rescorers.scorer
    fits = _fits(batch, found, scorer)
    paths = _no_drafts(found)
    for rows in _groups(batch, np.flatnonzero(fits), _TEXTS if reads_batches(scorer) else 1):
        contexts = [
            batch.texts[number].context(position)
            for number, position in zip(
                batch.numbers[rows].tolist(), batch.positions[rows].tolist(), strict=True
            )
        ]
        with _SEARCHING:
            paths[rows] = _search(found, rows, contexts, scorer, options)
    return Proposal(paths)


def draft_along(batch: PositionBatch, rescorers: Rescorers, options: DraftConfig) -> Proposal:
    """Drafts as long as those of `draft_rescored`, and equal up to their first wrong token."""
    found = batch.top(options.top_k)
    rows = np.flatnonzero(_fits(batch, found, rescorers.scorer))
    scores = _scores_along(batch, rescorers.scorer, rows, options.top_k)
    paths = _no_drafts(found)
    if len(rows):
        contexts = [[0]] * len(rows)
        paths[rows] = _search(found, rows, contexts, _AlongOutput(scores), options)
    return Proposal(paths)


def measure_rescoring(
    scorer: TransitionScorer, text: RecordedText, top_k: int, *, steps: int = 24
) -> float:
    """Median milliseconds to rescore one draft, at consecutive positions of a recorded text.

    Args:
        scorer: as in decoding, with its own KV cache; the first position, which reads the prompt,
            does not count.
        text: of two tokens or more.
        top_k: k, at most that of the text.
        steps: positions, at most.
    """
    seconds = []
    for position in range(min(steps, len(text.output))):
        kept = np.s_[position : position + 1, :, :top_k]
        found, context = Candidates(text.token_ids[kept], text.scores[kept]), text.context(position)
        start = time.perf_counter()
        rescore_greedily(found, [context], scorer)
        seconds.append(time.perf_counter() - start)
    return 1e3 * float(np.median(seconds[1:] or seconds))


class _AlongOutput(TransitionScorer):
    """Answers as if every prefix were the greedy output; a history state is the slot.

    Args:
        scores: (B, S, k) log probabilities.
    """

    def __init__(self, scores: Floats) -> None:
        self._scores = scores

    def start(self, _contexts: Sequence[Sequence[int]]) -> int:
        return 0

    def score(self, state: int, _candidates: Int32Array) -> Floats:
        return self._scores[:, state]

    def advance(self, state: int, _rows: Int64Array, _token_ids: Int32Array) -> int:
        return state + 1


def _search(
    found: Candidates, rows: Int64Array, contexts: Sequence[Sequence[int]],
    scorer: TransitionScorer, options: DraftConfig,
) -> Int32Array:  # fmt: skip
    """(R, 1, S) the best draft of some rows of a batch."""
    chosen = Candidates(found.token_ids[rows], found.scores[rows])
    return rescore_greedily(chosen, contexts, scorer, alpha=options.alpha)[:, None]


def _no_drafts(found: Candidates) -> Int32Array:
    """(B, 1, S) empty drafts, which decoding has where the scorer fails."""
    batch, slots = found.token_ids.shape[:2]
    return np.full((batch, 1, slots), Drafts.PAD_TOKEN, np.int32)


def _fits(
    batch: PositionBatch, found: Candidates, scorer: TransitionScorer
) -> npt.NDArray[np.bool_]:
    """(B,) whether the scorer has positions for all histories of a search."""
    most = max_positions_of(scorer)
    if most is None:
        return np.ones(len(found.token_ids), bool)
    prompts = np.array([len(batch.texts[number].prompt) for number in batch.numbers.tolist()])
    is_open = np.logical_and.accumulate(~np.isneginf(found.scores).all(axis=2), axis=1)
    return np.asarray(prompts + batch.positions + is_open.sum(axis=1) <= most)


def _groups(batch: PositionBatch, rows: Int64Array, texts: int) -> Iterator[Int64Array]:
    """Rows to search at once: of few texts, a position of each, which follows that of the last.

    So a scorer with a KV cache reads one token of each text more, not whole texts.
    """
    numbers = batch.numbers[rows]
    for chunk in np.array_split(distinct := np.unique(numbers), -(-len(distinct) // texts) or 1):
        members = rows[np.isin(numbers, chunk)]
        members = members[np.lexsort((batch.positions[members], batch.numbers[members]))]
        own = batch.numbers[members]
        ranks = np.arange(len(own)) - np.searchsorted(own, own)
        for rank in range(int(ranks.max(initial=-1)) + 1):
            yield members[ranks == rank]


def _check_vocabulary(name: str, scorer: TransitionScorer, texts: Sequence[RecordedText]) -> None:
    size, highest = vocab_size_of(scorer), max(int(text.token_ids.max()) for text in texts)
    if size is not None and highest >= size:
        raise ValueError(
            f"rescorer {name}: has a vocabulary of {size}, the record has token id {highest}; "
            "expected a rescorer on the recorded model's token ids"
        )


def _scores_along(batch: PositionBatch, scorer: Any, rows: Int64Array, top_k: int) -> Float64Array:
    """(R, S, k) float64 along the output, added as MixtureScorer adds; of weight 0 nothing."""
    total = np.zeros((len(rows), batch.wanted.shape[1], top_k))
    for part, weight in parts_of(scorer):
        if weight != 0.0:  # 0 * -inf is no number
            total += weight * batch.rescored[part][rows][..., :top_k]
    return total


def _read_texts(
    scorer: TransitionScorer, texts: Sequence[RecordedText], on_text: Callable[[], None] | None
) -> list[Float64Array]:
    """(m, H, k) log probabilities of the candidates of each text."""
    size = _TEXTS if reads_batches(scorer) else 1
    order = sorted(range(len(texts)), key=lambda number: -len(texts[number].output))
    found: dict[int, Float64Array] = {}
    for start in range(0, len(order), size):
        numbers = order[start : start + size]
        scores = _read_together(scorer, [texts[number] for number in numbers])
        found.update(zip(numbers, scores, strict=True))
        for _ in numbers if on_text is not None else ():
            on_text()  # type: ignore[misc]
    return [found[number] for number in range(len(texts))]


def _read_together(scorer: TransitionScorer, texts: Sequence[RecordedText]) -> list[Float64Array]:
    """As `_read_texts`, a token of each text at a time; 0 where nothing is accepted anyhow."""
    most = max_positions_of(scorer)
    ends = [
        len(text.output) if most is None else min(len(text.output), most - len(text.prompt))
        for text in texts
    ]
    scores: list[Float64Array] = [np.zeros(text.token_ids.shape) for text in texts]
    slots = np.arange(texts[0].num_slots)
    rows = [row for row, end in enumerate(ends) if end > 0]
    if not rows:
        return scores
    state = scorer.start([texts[row].context(0) for row in rows])
    for step in range(max(ends)):
        used = slots[slots <= step]
        wanted = np.stack([texts[row].token_ids[step - used, used] for row in rows])
        known = np.asarray(scorer.score(state, wanted.reshape(len(rows), -1)), np.float64)
        for row, values in zip(rows, known.reshape(wanted.shape), strict=True):
            scores[row][step - used, used] = values
        kept = [index for index, row in enumerate(rows) if ends[row] > step + 1]
        if kept:
            rows = [rows[index] for index in kept]
            tokens = np.array([texts[row].output[step + 1] for row in rows], np.int32)
            state = scorer.advance(state, np.array(kept, np.int64), tokens)
    return scores
