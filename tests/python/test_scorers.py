"""Scorers of transitions and beam search: against all paths, and against the exact search."""

import itertools

import numpy as np
import pytest

from lattice_bpd import NGramLM
from lattice_bpd.draft import KenlmScorer, MixtureScorer, NGramScorer, TransitionScorer
from lattice_bpd.draft.scorers import search_drafts
from lattice_bpd.lattice.logits import select_top_k

VOCAB = 7


class HistoryScorer(TransitionScorer):
    """A table of log probabilities given the whole history; a state is a list of tuples."""

    vocab_size = VOCAB

    def start(self, contexts):
        return [tuple(context) for context in contexts]

    def score(self, state, candidates):
        return np.array([[self.log_prob(h, w) for w in row]
                         for h, row in zip(state, candidates, strict=True)])  # fmt: skip

    def advance(self, state, rows, token_ids):
        return [(*state[row], int(token)) for row, token in zip(rows, token_ids, strict=True)]

    @staticmethod
    def log_prob(history, word):
        weight = sum((7 * i + 3) * token for i, token in enumerate(history))
        return -float((weight * 13 + 5 * int(word)) % 17) / 4


def random_candidates(rng, batch=1, slots=4, top_k=3, masked=False):
    logits = rng.normal(size=(batch, slots, VOCAB)).astype(np.float32)
    if masked:
        logits[rng.random(logits.shape) < 0.5] = -np.inf
        logits[:, 1] = -np.inf
    return select_top_k(logits, top_k, log_softmax=False, where="test")


def random_contexts(rng, batch=1):
    return [rng.integers(0, VOCAB, rng.integers(1, 6)).tolist() for _ in range(batch)]


def list_all(candidates, contexts, alpha, row):
    """Every path of a lattice with its score, best first."""
    slots: list = []
    for ids, scores in zip(candidates.token_ids[row], candidates.scores[row], strict=True):
        pairs = list(zip(ids.tolist(), scores.tolist(), strict=True))
        open_pairs = [pair for pair in pairs if pair[1] > -np.inf]
        if not open_pairs:  # a slot that is masked altogether ends the lattice
            break
        slots.append(open_pairs)
    drafts = []
    for path in itertools.product(*slots) if slots else ():
        history, score = tuple(contexts[row]), 0.0
        for token, head in path:
            score += head + alpha * HistoryScorer.log_prob(history, token)
            history = (*history, token)
        padding = (-1,) * (len(candidates.token_ids[row]) - len(path))
        drafts.append((tuple(token for token, _ in path) + padding, score))
    return sorted(drafts, key=lambda pair: (-pair[1], pair[0]))


@pytest.mark.parametrize("seed", range(12))
def test_scorer_beam_that_holds_all_paths_is_exact(rng, seed):
    candidates = random_candidates(rng, batch=3, masked=seed % 3 == 2)
    contexts = random_contexts(rng, 3)
    searched = search_drafts(candidates, contexts, HistoryScorer(), num_drafts=100, alpha=0.7)
    for row in range(3):
        expected = list_all(candidates, contexts, 0.7, row)[:100]
        assert searched.counts[row] == len(expected)
        drafts = searched.token_ids[row, : len(expected)].tolist()
        assert [tuple(draft) for draft in drafts] == [path for path, _ in expected]
        scores = [score for _, score in expected]
        np.testing.assert_allclose(searched.scores[row, : len(expected)], scores, atol=1e-4)
        assert (searched.token_ids[row, len(expected) :] == -1).all()


def test_mixture_scorer_refuses(small_lm):
    with pytest.raises(ValueError, match="no scorer"):
        MixtureScorer([])
    with pytest.raises(ValueError, match="finite"):
        MixtureScorer([(small_lm, float("nan"))])
    large = HistoryScorer()
    large.vocab_size = 9
    with pytest.raises(ValueError, match=r"vocabularies of \[4, 9\]"):
        MixtureScorer([(small_lm, 1.0), (large, 1.0)])
    assert MixtureScorer([(small_lm, 1.0), (HistoryScorer(), 1.0)]).vocab_size == 7
    with pytest.raises(TypeError, match="pairs"):
        MixtureScorer([small_lm])
    with pytest.raises(TypeError, match="without start, score, advance"):
        MixtureScorer([(object(), 1.0)])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("words", [False, True])
def test_kenlm_scorer_equals_the_ngram_lm_of_the_same_arpa(rng, seed, words, tmp_path):
    pytest.importorskip("kenlm")
    corpus = [rng.integers(0, VOCAB, 20).astype(np.int32) for _ in range(30)]
    lm = NGramLM.train(corpus, 3, vocab_size=VOCAB, smoothing="absolute", unseen="uniform")
    vocab = [f"w{i}" for i in range(VOCAB)] if words else None
    path = tmp_path / "model.arpa"
    lm.to_arpa(path, vocab=vocab)
    scorer, ours = KenlmScorer(path, vocab), NGramScorer(lm)
    assert scorer.vocab_size == (VOCAB if words else None)
    contexts = [[], [1], [2, 3, 4, 5, 6, 1]]
    candidates = np.tile(np.arange(VOCAB, dtype=np.int32), (3, 1))
    state, own = scorer.start(contexts), ours.start(contexts)
    for _ in range(3):
        log_probs, expected = scorer.score(state, candidates), ours.score(own, candidates)
        np.testing.assert_allclose(log_probs, expected, atol=1e-4)
        rows, tokens = np.array([1, 1, 2]), rng.integers(0, VOCAB, 3).astype(np.int32)
        state, own = (s.advance(p, rows, tokens) for s, p in ((scorer, state), (ours, own)))


def test_search_refuses_beams_that_do_not_fit(rng):
    with pytest.raises(ValueError, match="a beam of at least as many"):
        search_drafts(random_candidates(rng), [[1]], HistoryScorer(), num_drafts=3, beam=2)
