"""Drafts against an example worked by hand and against brute force over all paths."""

from typing import Any

import numpy as np
import pytest

from lattice_bpd import Drafts, NGramLM, SausageLattice, rescore_lattice
from oracles import LN10, Slot, list_all_drafts, random_arpa, read_arpa, top_k_slots

ENGINES = ["auto", "fused", "openfst"]
ALPHAS = [1.0, 1.0, 0.5, 0.0, -0.75, 3.25, 64.0, 1e-3]
INF = float("inf")


def check_row(drafts: Drafts, row: int, expected: list[tuple[tuple[int, ...], float]]) -> None:
    """Row `row` holds exactly the first p of `expected`, in order, then padding."""
    num_drafts = drafts.scores.shape[1]
    count = min(num_drafts, len(expected))
    assert drafts.counts[row] == count
    pads = [Drafts.PAD_TOKEN] * drafts.token_ids.shape[2]  # a lattice may end before the last slot
    assert drafts.token_ids[row, :count].tolist() == [
        [*tokens, *pads[len(tokens) :]] for tokens, _ in expected[:count]
    ]
    scores = np.array([score for _, score in expected[:count]], np.float32)
    np.testing.assert_array_equal(drafts.scores[row, :count], scores)
    assert (drafts.token_ids[row, count:] == Drafts.PAD_TOKEN).all()
    assert (drafts.scores[row, count:] == -INF).all()


def random_scores(rng: np.random.Generator, size: int, integers: bool) -> Any:
    """Head scores: small integers for ties, else real numbers; now and then a masked token."""
    scores = rng.integers(-2, 3, size) if integers else 3 * rng.standard_normal(size)
    return np.where(rng.random(size) < 0.08, -np.inf, scores).astype(np.float32)


def random_slots(rng: np.random.Generator, vocab_size: int, max_paths: int = 700) -> list[Slot]:
    """Up to six slots of different widths."""
    integers, paths, slots = bool(rng.integers(2)), 1, []
    for _ in range(rng.integers(1, 7)):
        width = int(rng.integers(1, min(vocab_size, max(1, max_paths // paths), 8) + 1))
        paths *= width
        ids = rng.choice(vocab_size, width, replace=False)
        slots.append((ids, random_scores(rng, width, integers)))
    return slots


@pytest.mark.parametrize("engine", ENGINES)
def test_worked_example(small_lm: NGramLM, engine: str) -> None:
    #   slot 0: cat 2.0, ran 2.5    slot 1: sat 1.0, the 1.5    context: the, after <s>
    logits = np.full((2, 4), -9.0, np.float32)
    logits[0, [1, 3]] = 2.0, 2.5
    logits[1, [2, 0]] = 1.0, 1.5
    drafts = rescore_lattice(logits, [0], small_lm, top_k=2, alpha=0.5, engine=engine)
    assert drafts.token_ids[0, :4].tolist() == [[1, 2], [1, 0], [3, 0], [3, 2]]
    cat_sat = (2.0 + 1.0) + 0.5 * LN10 * (-0.1 + -0.45)  # <s> the cat, the cat sat
    cat_the = (2.0 + 1.5) + 0.5 * LN10 * (-0.1 + (-0.15 - 0.3 - 0.9))
    ran_the = (2.5 + 1.5) + 0.5 * LN10 * ((-0.05 - 0.4 - 1.2) + (0.0 - 0.9))
    ran_sat = (2.5 + 1.0) + 0.5 * LN10 * ((-0.05 - 0.4 - 1.2) + (0.0 - 0.8))
    expected = np.array([cat_sat, cat_the, ran_the, ran_sat])
    np.testing.assert_allclose(drafts.scores[0, :4], expected, rtol=1e-6)
    assert drafts.counts.tolist() == [4]
    assert drafts.token_ids.shape == (1, 16, 2)
    assert drafts.token_ids.dtype == drafts.counts.dtype == np.int32
    assert drafts.scores.dtype == np.float32


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(240))
def test_brute_force(seed: int, rng: np.random.Generator, engine: str, core_of: Any) -> None:
    vocab_size, order = int(rng.integers(2, 12)), 1 + seed % 6
    exact = bool(rng.integers(2))
    text = random_arpa(rng, vocab_size, order, exact=exact, ngrams=int(rng.integers(30)))
    lm, oracle = core_of(text, vocab_size=vocab_size), read_arpa(text)
    for _ in range(3):
        slots = random_slots(rng, vocab_size)
        context = rng.integers(0, vocab_size, rng.integers(0, 8)).tolist()
        bos, alpha = bool(rng.integers(2)), float(rng.choice(ALPHAS))
        expected = list_all_drafts(slots, oracle, context, alpha=alpha, bos=bos)
        for num_drafts in {1, 2, 16, int(rng.integers(1, len(expected) + 4))}:
            drafts = rescore_lattice(
                SausageLattice(slots), context, lm,
                num_drafts=num_drafts, alpha=alpha, bos=bos, engine=engine,
            )  # fmt: skip
            check_row(drafts, 0, expected)


@pytest.mark.parametrize("seed", range(30))
def test_batch_of_different_contexts(seed: int, rng: np.random.Generator, core_of: Any) -> None:
    batch, num_slots, vocab_size = (int(n) for n in rng.integers(1, 6, 3))
    vocab_size += 3
    top_k = int(rng.integers(1, min(vocab_size, 4) + 1))
    text = random_arpa(rng, vocab_size, 1 + seed % 6)
    lm, oracle = core_of(text, vocab_size=vocab_size), read_arpa(text)
    shape = (batch, num_slots, vocab_size)
    logits = random_scores(rng, int(np.prod(shape)), True).reshape(shape)
    contexts = [rng.integers(0, vocab_size, rng.integers(0, 9)) for _ in range(batch)]
    drafts = rescore_lattice(logits, contexts, lm, top_k=top_k, num_drafts=20, alpha=0.5)
    assert drafts.token_ids.shape == (batch, 20, num_slots)
    assert len(drafts) == batch
    for row in range(batch):
        slots = top_k_slots(logits[row], top_k)
        check_row(drafts, row, list_all_drafts(slots, oracle, contexts[row], alpha=0.5))
        alone = rescore_lattice(
            logits[row], contexts[row], lm, top_k=top_k, num_drafts=20, alpha=0.5
        )
        np.testing.assert_array_equal(alone.token_ids[0], drafts.token_ids[row])
        np.testing.assert_array_equal(alone.scores[0], drafts.scores[row])


@pytest.mark.parametrize("engine", ENGINES)
def test_all_paths_tie(small_lm: NGramLM, engine: str) -> None:
    logits = np.zeros((5, 4), np.float32)
    every = list_all_drafts(top_k_slots(logits, 4), None)
    for num_drafts in (1, 2, 63, 64, 65, 500, 1024, 1025):
        drafts = rescore_lattice(
            logits, [0], small_lm, top_k=4, num_drafts=num_drafts, alpha=0.0, engine=engine
        )
        check_row(drafts, 0, every)


def test_named_bos_in_the_context_is_not_doubled(core_of: Any, small_arpa: Any) -> None:
    lm = core_of(small_arpa.read_text(), vocab_size=6, bos_id=4, eos_id=5)
    logits = np.zeros((2, 6), np.float32)
    logits[:, 4:] = -INF
    plain = rescore_lattice(logits, [0], lm, top_k=4, alpha=1.0)
    explicit = rescore_lattice(logits, [4, 0], lm, top_k=4, alpha=1.0)
    np.testing.assert_array_equal(plain.token_ids, explicit.token_ids)
    np.testing.assert_array_equal(plain.scores, explicit.scores)


def test_log_softmax_moves_all_scores_by_a_constant(small_lm: NGramLM) -> None:
    logits = np.random.default_rng(3).standard_normal((3, 4)).astype(np.float32)
    raw = rescore_lattice(logits, [2], small_lm, top_k=2, alpha=1.0)
    normal = rescore_lattice(logits, [2], small_lm, top_k=2, log_softmax=True, alpha=1.0)
    np.testing.assert_array_equal(raw.token_ids, normal.token_ids)
    shift = np.log(np.exp(logits.astype(np.float64)).sum(axis=1)).sum()
    np.testing.assert_allclose(raw.scores[0, :8] - shift, normal.scores[0, :8], rtol=1e-5)
