"""A slot whose tokens are all masked ends the lattice, for every engine.

The law: searching logits with such a slot is searching the logits before it, padded.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lattice_bpd import (
    Drafts,
    NGramLM,
    SausageLattice,
    _core,
    rescore_fst,
    rescore_lattice,
    rescore_tree,
    sample_tree,
)
from lattice_bpd.draft import SharedNoise
from lattice_bpd.draft.scorers import NGramScorer, search_drafts
from lattice_bpd.lattice.logits import select_top_k
from oracles import random_arpa

INF = float("inf")
VOCAB, SLOTS, TOP_K = 9, 5, 3
SEEDS = range(8)


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


def check_drafts(drafts: Drafts, row: int, alone: Drafts | None, end: int) -> None:
    """Row `row` holds the drafts of the slots before the end; None: no draft."""
    if alone is None:
        assert int(drafts.counts[row]) == 0
        assert (drafts.token_ids[row] == Drafts.PAD_TOKEN).all()
        assert (drafts.scores[row] == -INF).all()
        return
    np.testing.assert_array_equal(drafts.counts[row], alone.counts[0])
    np.testing.assert_array_equal(drafts.token_ids[row][:, :end], alone.token_ids[0])
    np.testing.assert_array_equal(drafts.scores[row], alone.scores[0])
    assert (drafts.token_ids[row][:, end:] == Drafts.PAD_TOKEN).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["openfst", *_core.fused_instruction_sets()])
def test_drafts(rng: np.random.Generator, name: str, lm: NGramLM) -> None:
    logits, ends, contexts = random_logits(rng)
    engine = "openfst" if name == "openfst" else "fused"
    _core.set_fused_instruction_set("" if name == "openfst" else name)
    options: dict[str, Any] = {"top_k": TOP_K, "num_drafts": 7, "alpha": 0.5}
    drafts = rescore_lattice(logits, contexts, lm, engine=engine, **options)
    lattices = [SausageLattice.from_logits(row, TOP_K) for row in logits]
    del options["top_k"]
    from_lattices = rescore_lattice(lattices, contexts, lm, engine=engine, **options)
    assert from_lattices == drafts
    for row, end in enumerate(ends):
        alone = None
        if end:
            alone = rescore_lattice(
                logits[row, :end], contexts[row], lm, engine="openfst", top_k=TOP_K, **options
            )
        check_drafts(drafts, row, alone, end)
        assert lattices[row].num_slots == end


@pytest.mark.parametrize("seed", SEEDS)
def test_trees_and_samples(rng: np.random.Generator, lm: NGramLM) -> None:
    logits, ends, contexts = random_logits(rng)
    options: dict[str, Any] = {"top_k": TOP_K, "max_nodes": 20, "alpha": 1.0}
    noise = [SharedNoise([7] * n, [3] * n) for n in (len(ends), 1)]
    tree = rescore_tree(logits, contexts, lm, **options)
    samples = sample_tree(logits, contexts, lm, seed=5, **options)
    shared = sample_tree(logits, contexts, lm, noise=noise[0], **options)
    for row, end in enumerate(ends):
        if end == 0:
            assert [int(together.counts[row]) for together in (tree, samples, shared)] == [0, 0, 0]
            assert samples.sampled_from(row, -1) is None
            continue
        pieces = (logits[row, :end], contexts[row], lm)
        alone = [
            rescore_tree(*pieces, **options),
            sample_tree(*pieces, seed=5, **options),
            sample_tree(*pieces, noise=noise[1], **options),
        ]
        for together, one in zip((tree, samples, shared), alone, strict=True):
            for field in ("token_ids", "parents", "depths", "log_probs", "counts"):
                np.testing.assert_array_equal(getattr(together, field)[row], getattr(one, field)[0])
        for node in range(-1, int(samples.counts[row])):
            ours, expected = samples.sampled_from(row, node), alone[1].sampled_from(0, node)
            assert (ours is None) == (expected is None)
            for mine, other in zip(ours or (), expected or (), strict=True):
                np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("beam", [None, 500])
def test_scorers(rng: np.random.Generator, lm: NGramLM, beam: int | None) -> None:
    logits, ends, contexts = random_logits(rng)
    candidates = select_top_k(logits, TOP_K, log_softmax=False, where="test")
    options: dict[str, Any] = {"num_drafts": 4, "beam": beam, "alpha": 0.5}
    drafts = search_drafts(candidates, contexts, NGramScorer(lm), **options)
    assert drafts.token_ids.shape == (len(ends), 4, SLOTS)
    for row, end in enumerate(ends):
        alone = None
        if end:
            part = select_top_k(logits[row, :end], TOP_K, log_softmax=False, where="test")
            alone = search_drafts(part, [contexts[row]], NGramScorer(lm), **options)
        check_drafts(drafts, row, alone, end)


def test_a_scorer_is_not_called_if_no_lattice_has_a_slot(lm: NGramLM) -> None:
    class NoScorer(NGramScorer):
        def start(self, contexts: Any) -> Any:
            raise AssertionError(f"there is nothing to score for {contexts}")

    masked = np.full((2, 3, VOCAB), -INF, np.float32)
    candidates = select_top_k(masked, TOP_K, log_softmax=False, where="test")
    assert search_drafts(candidates, [[], []], NoScorer(lm)).counts.tolist() == [0, 0]


@pytest.mark.parametrize("seed", SEEDS)
def test_trees_for_verification(rng: np.random.Generator, lm: NGramLM) -> None:
    pytest.importorskip("torch")
    from lattice_bpd.verify import search

    logits, ends, contexts = random_logits(rng)
    contexts = [[*context, 1] for context in contexts]
    candidates = select_top_k(logits, TOP_K, log_softmax=False, where="test")
    by_engine = [
        search.search_trees(candidates, contexts, lm, [99] * len(ends), number=20, alpha=0.5),
        search.search_trees(
            candidates, contexts, lm, [99] * len(ends), kind="drafts", number=6, alpha=0.5
        ),
    ]
    for trees in by_engine:
        for tree, end, row in zip(trees, ends, logits, strict=True):
            assert tree.max_depth == end
            for token, depth in list(zip(tree.token_ids, tree.depths, strict=True))[1:]:
                assert row[depth - 1, token] > -INF


@pytest.mark.parametrize("seed", SEEDS)
def test_fst_export(rng: np.random.Generator, lm: NGramLM) -> None:
    pytest.importorskip("pywrapfst")
    logits, ends, contexts = random_logits(rng)
    drafts = rescore_lattice(logits, contexts, lm, top_k=TOP_K, num_drafts=7, alpha=1.0)
    for row, end in enumerate(ends):
        fst = SausageLattice.from_logits(logits[row], TOP_K).to_pywrapfst()
        assert fst.num_states() == (end + 1 if end else 0)
        for engine in ("auto", "openfst"):
            rescored = rescore_fst(fst, lm, 7, contexts[row], alpha=1.0, engine=engine)
            check_drafts(drafts, row, rescored if end else None, end)
            assert int(rescored.counts[0]) == int(drafts.counts[row])


@pytest.mark.parametrize("log_softmax", [False, True])
def test_torch_on_the_host_and_by_the_way_of_an_accelerator(
    rng: np.random.Generator, lm: NGramLM, log_softmax: bool
) -> None:
    torch = pytest.importorskip("torch")
    from lattice_bpd.lattice.logits import Candidates, top_k_on_device

    logits, _, contexts = random_logits(rng)
    expected = rescore_lattice(
        logits, contexts, lm, top_k=TOP_K, log_softmax=log_softmax, alpha=1.0
    )
    tensor = torch.from_numpy(logits)
    drafts = rescore_lattice(tensor, contexts, lm, top_k=TOP_K, log_softmax=log_softmax, alpha=1.0)
    assert isinstance(drafts.token_ids, torch.Tensor)
    for name in ("token_ids", "scores", "counts"):
        np.testing.assert_array_equal(getattr(drafts, name).numpy(), getattr(expected, name))
    ids, scores = top_k_on_device(tensor, TOP_K, log_softmax)
    shape = (*logits.shape[:2], TOP_K)
    by_device = Candidates(ids.reshape(shape), scores.reshape(shape))
    on_device = rescore_lattice(by_device, contexts, lm, alpha=1.0)
    np.testing.assert_array_equal(on_device.token_ids, expected.token_ids)
    np.testing.assert_array_equal(on_device.counts, expected.counts)
