"""A slot whose tokens are all masked ends the lattice, for every search.

The law: searching logits with such a slot is searching the logits before it, padded.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from lattice_bpd import NGramLM, _core, rescore_lattice, rescore_tree, sample_tree
from lattice_bpd.draft import Drafts, SharedNoise
from lattice_bpd.draft.scorers import NGramScorer, rescore_greedily
from lattice_bpd.lattice.logits import Candidates, select_top_k, top_k_on_device
from oracles import random_arpa

torch = pytest.importorskip("torch")

INF = float("inf")
VOCAB, SLOTS, TOP_K = 9, 5, 3
SEEDS = range(8)
LISTS: dict[str, Any] = {"top_k": TOP_K, "num_drafts": 7, "alpha": 0.5}
TREES: dict[str, Any] = {"top_k": TOP_K, "max_nodes": 20}
Search = Callable[[Any, list[list[int]], NGramLM], Any]


@pytest.fixture(autouse=True)
def best_instruction_set() -> Iterator[None]:
    yield
    _core.set_fused_instruction_set("")


@pytest.fixture
def lm(rng: np.random.Generator, core_of: Any) -> NGramLM:
    return core_of(random_arpa(rng, VOCAB, 3), vocab_size=VOCAB)


def random_logits(rng: np.random.Generator) -> tuple[Any, list[int], list[list[int]]]:
    """(B, H, V) logits, the number of slots before the first that is masked, contexts."""
    ends = [0, 1, 3, SLOTS, int(rng.integers(0, SLOTS + 1))]
    logits = rng.normal(0, 2, (len(ends), SLOTS, VOCAB)).astype(np.float32)
    logits[rng.random(logits.shape) < 0.2] = -INF
    logits[:, :, 0] = np.maximum(logits[:, :, 0], -9.0)  # masks elsewhere are those of `ends`
    for row, end in enumerate(ends):
        logits[row, end : end + 1] = -INF
    contexts = [rng.integers(0, VOCAB, n).tolist() for n in range(len(ends))]
    return logits, ends, contexts


def fused(name: str) -> Search:
    def search(logits: Any, contexts: Any, lm: NGramLM) -> Any:
        _core.set_fused_instruction_set(name)
        return rescore_lattice(logits, contexts, lm, engine="fused", **LISTS)

    return search


def by_device(logits: Any, contexts: Any, lm: NGramLM) -> Any:
    parts = top_k_on_device(torch.from_numpy(logits), TOP_K, False)
    lattice = Candidates(*(part.reshape(*logits.shape[:2], TOP_K) for part in parts))
    return rescore_lattice(lattice, contexts, lm, num_drafts=7, alpha=0.5)


def by_scorer(logits: Any, contexts: Any, lm: NGramLM) -> Any:
    candidates = select_top_k(logits, TOP_K, log_softmax=False, where="test")
    drafts = rescore_greedily(candidates, contexts, NGramScorer(lm), alpha=0.5)
    counts = (drafts[:, 0] >= 0).astype(np.int32)
    return Drafts(drafts[:, None], np.zeros((len(drafts), 1), np.float32), counts)


def shared(logits: Any, contexts: Any, lm: NGramLM) -> Any:
    noise = SharedNoise([7] * len(logits), [3] * len(logits))
    return sample_tree(logits, contexts, lm, noise=noise, **TREES)


SEARCHES: dict[str, Search] = {
    "openfst": lambda *given: rescore_lattice(*given, engine="openfst", **LISTS),
    **{name: fused(name) for name in _core.fused_instruction_sets()},
    "device": by_device,
    "scorer": by_scorer,
    "tree": lambda *given: rescore_tree(*given, **TREES),
    "samples": lambda z, *given: sample_tree(z, *given, seed=[5] * len(z), **TREES),
    "shared noise": shared,
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SEARCHES)
def test_a_masked_slot_ends_the_lattice(rng: np.random.Generator, name: str, lm: NGramLM) -> None:
    logits, ends, contexts = random_logits(rng)
    together = SEARCHES[name](logits, contexts, lm)
    fields = [field for field in ("scores", "log_probs", "parents") if hasattr(together, field)]
    for row, end in enumerate(ends):
        token_ids = np.asarray(together.token_ids[row])
        if end == 0:
            assert int(together.counts[row]) == 0
            assert (token_ids == -1).all()
            continue
        alone = SEARCHES[name](logits[row : row + 1, :end], contexts[row : row + 1], lm)
        assert int(together.counts[row]) == int(alone.counts[0])
        expected = np.asarray(alone.token_ids[0])
        np.testing.assert_array_equal(token_ids[..., : expected.shape[-1]], expected)
        assert (token_ids[..., expected.shape[-1] :] == -1).all()
        for field in fields:
            np.testing.assert_array_equal(getattr(together, field)[row], getattr(alone, field)[0])
        for node in range(-1, int(together.counts[row]) if name == "samples" else -1):
            ours, theirs = together.sampled_from(row, node), alone.sampled_from(0, node)
            assert (ours is None) == (theirs is None)
            for mine, other in zip(ours or (), theirs or (), strict=True):
                np.testing.assert_array_equal(mine, other)
