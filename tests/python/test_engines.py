"""Every build of the fused engine against the openfst engine and brute force; threads."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lattice_bpd import Drafts, NGramLM, SausageLattice, _core, rescore_lattice, rescore_tree
from lattice_bpd.lm import KatzWarning
from oracles import Slot, random_arpa

INSTRUCTION_SETS = _core.fused_instruction_sets()
ALPHAS = [1.0, 0.5, 0.0, -0.75, 3.25, 64.0, 1e-3]
CASES = 12  # lattices for each LM


@pytest.fixture(autouse=True)
def best_instruction_set() -> Iterator[None]:
    yield
    _core.set_fused_instruction_set("")


def random_lm(rng: np.random.Generator, vocab_size: int) -> str:
    """ARPA text of any order; half of them with numbers that tie, a fifth not closed."""
    return random_arpa(
        rng,
        vocab_size,
        int(rng.integers(1, 7)),
        ngrams=int(rng.integers(1, 60)),
        exact=bool(rng.integers(2)),
        closed=bool(rng.random() < 0.8),
    )


def random_slots(rng: np.random.Generator, vocab_size: int, max_paths: float) -> list[Slot]:
    """One to eight slots, some of a single candidate, some scores masked."""
    slots: list[Slot] = []
    paths = 1.0
    integers = bool(rng.random() < 0.6)
    for _ in range(rng.integers(1, 9)):
        widest = max(1, int(min(vocab_size, max_paths / paths)))
        width = int(rng.integers(1, widest + 1)) if rng.random() < 0.8 else 1
        paths *= width
        scores = rng.integers(-2, 3, width) if integers else 3 * rng.standard_normal(width)
        masked = np.where(rng.random(width) < 0.08, -np.inf, scores).astype(np.float32)
        slots.append((rng.choice(vocab_size, width, replace=False), masked))
    return slots


def random_options(rng: np.random.Generator, vocab_size: int) -> dict[str, Any]:
    return {
        "context": rng.integers(0, vocab_size, rng.integers(0, 8)).tolist(),
        "alpha": float(rng.choice(ALPHAS)),
        "num_drafts": int(rng.choice([1, 2, 5, 16, 100, 1000])),
        "bos": bool(rng.integers(2)),
    }


def check_equal(actual: Drafts, expected: Drafts) -> None:
    np.testing.assert_array_equal(actual.counts, expected.counts)
    np.testing.assert_array_equal(actual.token_ids, expected.token_ids)
    np.testing.assert_array_equal(actual.scores, expected.scores)


@pytest.mark.parametrize("seed", range(60))
def test_engines_are_equal(seed: int, rng: np.random.Generator, core_of: Any) -> None:
    vocab_size = int(rng.integers(1, 40))
    lm = core_of(random_lm(rng, vocab_size), vocab_size=vocab_size)
    for _ in range(CASES):
        lattice = SausageLattice(random_slots(rng, vocab_size, 1e12))
        options = random_options(rng, vocab_size)
        expected = rescore_lattice(lattice, lm=lm, engine="openfst", **options)
        for name in INSTRUCTION_SETS:
            _core.set_fused_instruction_set(name)
            check_equal(rescore_lattice(lattice, lm=lm, engine="fused", **options), expected)


@pytest.fixture(scope="module")
def lm() -> NGramLM:
    rng = np.random.default_rng(5)
    texts = [rng.zipf(1.3, 30) % 50 for _ in range(300)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KatzWarning)
        return NGramLM.train(texts, 4, vocab_size=50, katz_k=1)


def random_batch(batch: int, slots: int, top_k: int) -> tuple[Any, list[list[int]]]:
    rng = np.random.default_rng(batch)
    logits = rng.integers(-8, 8, (batch, slots, 50)).astype(np.float32) / 4
    return logits, [rng.integers(0, 50, rng.integers(0, 6)).tolist() for _ in range(batch)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("batch", "slots"), [(1, 8), (2, 3), (3, 1), (17, 5), (64, 8)])
@pytest.mark.parametrize("engine", ["fused", "openfst"])
def test_threads_do_not_show(lm: NGramLM, engine: str, batch: int, slots: int) -> None:
    logits, contexts = random_batch(batch, slots, 12)
    options: dict[str, Any] = {"top_k": 12, "alpha": 0.5}
    by_threads = [
        rescore_lattice(logits, contexts, lm, engine=engine, threads=threads, **options)
        for threads in (1, 2, 8, 0)
    ]
    trees = [
        rescore_tree(logits, contexts, lm, max_nodes=40, threads=threads, **options)
        for threads in (1, 2, 8)
    ]
    for drafts in by_threads[1:]:
        for name in ("token_ids", "scores", "counts"):
            assert getattr(drafts, name).tobytes() == getattr(by_threads[0], name).tobytes()
    for tree in trees[1:]:
        for name in vars(tree):
            assert getattr(tree, name).tobytes() == getattr(trees[0], name).tobytes()


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_the_first_failing_row_is_reported(lm: NGramLM, threads: int) -> None:
    lattices = [SausageLattice([(range(12), np.zeros(12))] * 8) for _ in range(40)]
    for row in (7, 21, 33):
        lattices[row] = SausageLattice([([(1 << 21) + row], [0.0])] * 8)
    with pytest.raises(ValueError, match="token id 2097159, but the LM"):
        rescore_lattice(lattices, [[]] * 40, lm, threads=threads)
