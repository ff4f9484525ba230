"""Scorers of transitions and greedy rescoring: against all paths, and against other scorers."""

import numpy as np
import pytest

from lattice_bpd import NGramLM
from lattice_bpd.draft import KenlmScorer, MixtureScorer, NGramScorer, TransitionScorer
from lattice_bpd.draft.scorers import rescore_greedily
from lattice_bpd.lattice.logits import Candidates, select_top_k
from lattice_bpd.lm import write_lm

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
        value = (weight * 13 + 5 * int(word)) % 17
        return -float(value) / 4 if value else -np.inf


def random_candidates(rng, batch=1, slots=4, top_k=3, masked=False):
    logits = rng.normal(size=(batch, slots, VOCAB)).astype(np.float32)
    if masked:
        logits[rng.random(logits.shape) < 0.5] = -np.inf
        logits[:, 1] = -np.inf
    return select_top_k(logits, top_k, log_softmax=False, where="test")


def random_contexts(rng, batch=1):
    return [rng.integers(0, VOCAB, rng.integers(1, 6)).tolist() for _ in range(batch)]


@pytest.mark.parametrize("alpha", [0.7, 0.0, -1.0])
@pytest.mark.parametrize("seed", range(8))
def test_greedy_rescoring_takes_the_best_token_of_each_slot(rng, seed, alpha):
    """Head scores are halves and the scorer's quarters, some of them -inf, so that many tie."""
    candidates = random_candidates(rng, batch=5, masked=seed % 3 == 2)
    candidates = Candidates(candidates.token_ids, np.round(candidates.scores * 2) / 2)
    contexts = random_contexts(rng, 5)
    drafts = rescore_greedily(candidates, contexts, HistoryScorer(), alpha=alpha)
    for row, context in enumerate(contexts):
        expected: list[int] = []
        for ids, scores in zip(candidates.token_ids[row], candidates.scores[row], strict=True):
            values = {
                int(token): float(score) + alpha * max(-1e6, log_prob)
                for token, score in zip(ids, scores, strict=True)
                for log_prob in [HistoryScorer.log_prob((*context, *expected), token)]
                if score > -np.inf
            }
            if not values:  # a slot that is masked altogether ends the lattice
                break
            expected.append(max(values, key=lambda token: (values[token], -token)))
        assert drafts[row].tolist() == expected + [-1] * (drafts.shape[1] - len(expected))


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
    write_lm(lm, path, vocab=vocab)
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
