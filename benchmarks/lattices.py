"""Lattices for the benchmarks, the calls that rescore them, and the check that answers agree."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from corpus import ID_FACTOR, Corpus

from lattice_bpd import NGramLM, _core

CONTEXT = 3  # tokens before a lattice


class Lattices(NamedTuple):
    """N lattices of one shape.

    Attributes:
        token_ids: (N, H, k) int32.
        scores: (N, H, k) float32, falling.
        contexts: (N, T) int32, the tokens before each.
    """

    token_ids: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]
    contexts: npt.NDArray[np.int32]

    def take(self, first: int, count: int) -> Lattices:
        """Lattices first .. first + count - 1."""
        return Lattices(*(np.ascontiguousarray(array[first : first + count]) for array in self))

    def multiply_ids(self) -> Lattices:
        """The same lattices for the text of `corpus.multiply_ids`."""
        return self._replace(
            token_ids=ID_FACTOR * self.token_ids, contexts=ID_FACTOR * self.contexts
        )

    def split(self, count: int) -> list[Lattices]:
        """Parts of `count` lattices each; a remainder is left out."""
        last = len(self.token_ids) - count
        return [self.take(first, count) for first in range(0, last + 1, count)]


def draw_lattices(
    corpus: Corpus, count: int, slots: int, top_k: int, seed: int = 0, context: int = CONTEXT
) -> Lattices:
    """Candidates as frequent as in the corpus, contexts of `context` tokens that occur in it."""
    rng = np.random.default_rng([seed, slots, top_k])
    ids = corpus.token_ids
    token_ids = np.empty((count * slots, top_k), np.int32)
    for row in range(len(token_ids)):
        size = 4 * top_k
        while True:
            samples = ids[rng.integers(0, len(ids), size)]
            first = np.unique(samples, return_index=True)[1]
            if len(first) >= top_k:
                break
            size *= 2
        token_ids[row] = samples[np.sort(first)[:top_k]]
    scores = -np.sort(-2 * rng.standard_normal((count, slots, top_k)), axis=2)
    lengths = np.diff(corpus.offsets)
    lines = rng.choice(np.flatnonzero(lengths >= context), count)
    starts = corpus.offsets[lines] + rng.integers(0, lengths[lines] - context + 1)
    contexts = ids[starts[:, None] + np.arange(context)]
    shape = (count, slots, top_k)
    return Lattices(token_ids.reshape(shape), scores.astype(np.float32), contexts)


def rescore_arguments(
    lattices: Lattices, lm: NGramLM, num_drafts: int, engine: str, threads: int = 1
) -> tuple[Any, ...]:
    """What the core's `rescore` takes."""
    count, length = lattices.contexts.shape
    offsets = np.arange(count + 1, dtype=np.int64) * length
    context = lattices.contexts.reshape(-1)
    arrays = ((lattices.token_ids, lattices.scores), lm._core, context, offsets)
    return (*arrays, True, num_drafts, 1.0, engine, threads)


def rescore(
    lattices: Lattices, lm: NGramLM, num_drafts: int, engine: str, threads: int = 1
) -> tuple[Any, ...]:
    """Token ids (N, p, H), scores (N, p) and counts (N,) by one call of the core."""
    arrays: tuple[Any, ...] = _core.rescore(
        *rescore_arguments(lattices, lm, num_drafts, engine, threads)
    )
    return arrays


def tree_arguments(lattices: Lattices, lm: NGramLM, max_nodes: int) -> tuple[Any, ...]:
    """What the core's `find_trees` takes."""
    *arrays, bos, _, alpha, _, threads = rescore_arguments(lattices, lm, 1, "fused")
    return (*arrays, bos, max_nodes, alpha, threads)


def search_mixtures(lattices: Lattices, lm: NGramLM, max_nodes: int = 36) -> list[Any]:
    """Trees of a mixture of heads, LM and text, each after a text of its context, twice."""
    token_ids, scores = lattices.token_ids, lattices.scores
    log_probs = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True)) - np.float32(0.1)
    mixture = _core.Mixture(lm.vocab_size, True, [lm._core], True)
    trees = []
    for row, context in enumerate(lattices.contexts.tolist()):
        text = _core.MixtureText(mixture)
        text.append(context + context)
        part = slice(row, row + 1)
        heads = token_ids[part], log_probs[part]
        trees += _core.search_mixtures([text], [max_nodes], max_nodes, False, *heads)
    return trees


def check_engines_agree(lattices: Lattices, lm: NGramLM, num_drafts: int) -> None:
    """Asserts that both engines give the same drafts in the same order."""
    ours = rescore(lattices, lm, num_drafts, "fused")
    theirs = rescore(lattices, lm, num_drafts, "openfst")
    np.testing.assert_array_equal(ours[2], theirs[2])
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_allclose(ours[1], theirs[1], rtol=0, atol=1e-4)


def check_scores(lattices: Lattices, lm: NGramLM, num_drafts: int) -> None:
    """Asserts that the drafts' scores are what the LM and the heads say, and in order."""
    token_ids, scores, counts = rescore(lattices, lm, num_drafts, "fused")
    for n, context in enumerate(lattices.contexts):
        assert (np.diff(scores[n, : counts[n]]) <= 0).all()
        for draft in range(counts[n]):
            path = token_ids[n, draft]
            heads = lattices.scores[n][lattices.token_ids[n] == path[:, None]].sum()
            total = heads + lm.score(np.concatenate([context, path]))[len(context) :].sum()
            np.testing.assert_allclose(scores[n, draft], total, rtol=0, atol=1e-3)
