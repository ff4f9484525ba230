"""Transition scores and local normalization, against the probabilities of all paths."""

import math
from typing import Any

import numpy as np
import pytest

from lattice_bpd import (
    Drafts,
    NGramLM,
    rescore_lattice,
    rescore_tree,
    sample_tree,
)
from lattice_bpd.draft import SharedNoise
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_oracle import LatticeOracle, accept_length_of
from oracles import random_arpa, read_arpa
from same_results import is_same
from test_tree import prefixes_of

VOCAB = 9
NORMALIZATIONS = ("global", "local")


def random_input(rng: np.random.Generator, batch: int = 3, **options: Any) -> LatticeInput:
    """Lattices of up to 4 slots of up to 4 candidates, some of them masked."""
    slots, k = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    token_ids = rng.permuted(np.tile(np.arange(VOCAB), (batch, slots, 1)), axis=2)[:, :, :k]
    scores = rng.normal(0, 2, (batch, slots, k)).astype(np.float32)
    scores[rng.random(scores.shape) < 0.1] = -np.inf
    start = rng.normal(0, 2, (batch, k)).astype(np.float32)
    transitions = rng.normal(0, 2, (batch, slots - 1, k, k)).astype(np.float32)
    return LatticeInput(token_ids, scores, start, transitions, **options)


def oracle_of(lattice: LatticeInput, row: int, **options: Any) -> LatticeOracle:
    parts = {"start": lattice.start, "transitions": lattice.transitions}
    given = {name: array[row] for name, array in parts.items() if array is not None}
    return LatticeOracle(
        lattice.token_ids[row], lattice.scores[row], unary=lattice.unary, **given, **options
    )


def random_case(
    seed: int, core_of: Any, *, has_transitions: bool = True
) -> tuple[LatticeInput, NGramLM | None, list[list[int]], dict[str, Any], list[LatticeOracle]]:
    rng = np.random.default_rng(seed)
    unary = ("added", "included", "replaced")[seed % 3] if has_transitions else "added"
    lattice = random_input(rng, unary=unary, normalization=NORMALIZATIONS[seed % 2])
    if not has_transitions:
        lattice = LatticeInput(
            lattice.token_ids, lattice.scores, normalization=lattice.normalization
        )
    contexts = [rng.integers(0, VOCAB, n).tolist() for n in range(3)]
    options = {"alpha": float(rng.choice([0.5, 1.0, -0.75])), "temperature": [1.0, 1.7][seed % 2]}
    lm = oracle = None
    if seed % 5:
        text = random_arpa(rng, VOCAB, 1 + seed % 4, ngrams=30, exact=False)
        lm, oracle = core_of(text, vocab_size=VOCAB), read_arpa(text)
    oracles = [
        oracle_of(lattice, row, lm=oracle, context=contexts[row], **options) for row in range(3)
    ]
    return lattice, lm, contexts, options, oracles


def tokens_of(drafts: Drafts, row: int) -> list[tuple[int, ...]]:
    listed = drafts.token_ids[row, : int(drafts.counts[row])].tolist()
    return [tuple(token for token in draft if token != Drafts.PAD_TOKEN) for draft in listed]


def test_lattices_have_the_top_k_of_the_call_or_of_the_config() -> None:
    scores = np.random.default_rng(0).normal(size=(1, 2, 5)).astype(np.float32)
    lattice, best = LatticeInput(np.arange(10).reshape(1, 2, 5), scores), np.argsort(-scores)
    for top_k, width in ((None, 3), (2, 2), (4, 4)):
        cut = DraftConfig("tree", top_k=3).lattice_of(lattice, top_k)
        assert np.array_equal(np.sort(cut.token_ids % 5), np.sort(best[..., :width]))


@pytest.mark.parametrize("has_transitions", [True, False])
@pytest.mark.parametrize("seed", range(24))
def test_searches_against_all_paths(seed: int, has_transitions: bool, core_of: Any) -> None:
    case = random_case(seed, core_of, has_transitions=has_transitions)
    lattice, lm, contexts, options, oracles = case
    given = {"context": contexts, "lm": lm, **options}
    lists = rescore_lattice(lattice, num_drafts=6, **given)
    chains = rescore_lattice(lattice, num_drafts=1, objective="accept_length", **given)
    walks = rescore_lattice(lattice, num_drafts=1, objective="greedy_walk", **given)
    tree = rescore_tree(lattice, max_nodes=12, **given)
    for row, oracle in enumerate(oracles):
        logs = oracle.log_masses(lattice.normalization)
        scores = {
            oracle.tokens(path): oracle.score(path, lattice.normalization)
            for path in oracle.paths()
        }
        count = min(6, len(scores))
        listed = tokens_of(lists, row)
        assert len(set(listed)) == len(listed) == count
        np.testing.assert_allclose(
            lists.scores[row, :count], [scores[path] for path in listed], rtol=1e-5, atol=1e-5
        )
        best = sorted(scores.values(), reverse=True)[:count]
        np.testing.assert_allclose(lists.scores[row, :count], best, rtol=1e-5, atol=1e-5)
        assert tokens_of(walks, row) == ([oracle.walk()] if scores else [])
        prefixes = prefixes_of(tree, row)
        assert len(set(prefixes)) == len(prefixes) == min(12, len(logs))
        found = tree.log_probs[row, : len(prefixes)]
        np.testing.assert_allclose(found, [logs[p] for p in prefixes], rtol=1e-4, atol=1e-5)
        most = sorted(logs.values(), reverse=True)[: len(prefixes)]
        np.testing.assert_allclose(found, most, rtol=1e-4, atol=1e-5)
        if scores:
            (chain,) = tokens_of(chains, row)
            longest = max(accept_length_of(logs, path) for path in scores)
            assert accept_length_of(logs, chain) == pytest.approx(longest, rel=1e-5)
            assert float(chains.scores[row, 0]) == pytest.approx(longest, rel=1e-5)
            expected = [logs[chain[:n]] for n in range(1, len(chain) + 1)]
            np.testing.assert_allclose(
                chains.prefix_log_probs[row, 0, : len(chain)], expected, rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize("seed", range(0, 24, 2))  # those with global normalization
def test_the_openfst_engine_gives_the_same_list(seed: int, core_of: Any) -> None:
    lattice, lm, contexts, options, _ = random_case(seed, core_of)
    for num_drafts in (1, 5, 300):
        given = {"num_drafts": num_drafts, **options}
        fused = rescore_lattice(lattice, contexts, lm, engine="fused", **given)
        slow = rescore_lattice(lattice, contexts, lm, engine="openfst", **given)
        assert is_same(fused, slow)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_trees_by_shared_noise(normalization: str, core_of: Any) -> None:
    rng = np.random.default_rng(13)
    text = random_arpa(rng, VOCAB, 3, ngrams=30, exact=False)
    lm, lattice = core_of(text, vocab_size=VOCAB), random_input(rng, normalization=normalization)
    contexts = [[], [1], [2]]
    noise = SharedNoise([1, 2, 3], [0, 5, 9])
    shaped = sample_tree(lattice, contexts, lm, max_nodes=7, noise=noise)
    for row in range(3):
        oracle = oracle_of(lattice, row, lm=read_arpa(text), context=contexts[row], alpha=0.5)
        logs = {(): 0.0, **oracle.log_masses(normalization)}
        prefixes = [(), *prefixes_of(shaped, row)]  # type: ignore[arg-type]
        for node, prefix in enumerate(prefixes, start=-1):
            given = shaped.sampled_from(row, node)
            for token, q in zip(*given, strict=True) if given else ():
                longer = (*prefix, int(token))
                expected = math.exp(logs[longer] - logs[prefix])
                assert q == pytest.approx(expected, rel=1e-4, abs=1e-9)


def valid() -> dict[str, Any]:
    return {
        "token_ids": np.tile(np.arange(3), (2, 4, 1)), "scores": np.zeros((2, 4, 3), np.float32),
        "start": np.zeros((2, 3), np.float32), "transitions": np.zeros((2, 3, 3, 3), np.float32),
    }  # fmt: skip


def broken(name: str, index: tuple[int, ...], value: float) -> dict[str, Any]:
    arrays = valid()
    arrays[name][index] = value
    return {name: arrays[name]}


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"start": None}, ValueError, "start is None; expected start .* together with transitions"),
        ({"transitions": None}, ValueError, "transitions is None; expected start"),
        ({"unary": "none"}, ValueError, 'unary is \'none\'; expected one of "added"'),
        ({"normalization": "row"}, ValueError, "normalization is 'row'; expected one of"),
        (
            {"start": None, "transitions": None, "unary": "included"}, ValueError,
            'unary is "included" without transitions; expected "added"',
        ),
        (
            {"transitions": np.zeros((2, 4, 3, 3), np.float32)}, ValueError,
            r"transitions has shape \(2, 4, 3, 3\); expected \(2, 3, 3, 3\)",
        ),
        ({"start": np.zeros((2, 4), np.float32)}, ValueError, r"start has shape \(2, 4\)"),
        ({"scores": np.zeros((2, 4, 3))}, TypeError, "scores has elements of type float64"),
        ({"scores": [[[0.0]]]}, TypeError, "token_ids is a ndarray, scores a list"),
        ({"token_ids": np.zeros((2, 4, 3))}, TypeError, "token_ids has elements of type float64"),
        ({"token_ids": np.zeros((4, 3), int)}, ValueError, r"token_ids has shape \(4, 3\)"),
        ({"token_ids": np.zeros((2, 4, 3), int)}, ValueError, "token 0 occurs twice in slot 0"),
        ({"token_ids": np.arange(24).reshape(2, 4, 3) - 1}, ValueError, "token_ids has -1"),
        ({"token_ids": np.arange(24).reshape(2, 4, 3) << 30}, ValueError, "token_ids has 2469"),
        (broken("scores", (0, 1, 2), math.nan), ValueError, "scores has NaN or \\+inf"),
        (broken("start", (0, 1), math.nan), ValueError, "score nan of token 1 in slot 0"),
        (
            broken("transitions", (1, 2, 0, 1), -math.inf), ValueError,
            "transition -inf from candidate 0 to 1 of slot 3",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_error(
    changes: dict[str, Any], kind: type[Exception], message: str
) -> None:
    lattice = LatticeInput(**{**valid(), **changes})
    for search in (rescore_lattice, rescore_tree, sample_tree):
        with pytest.raises(kind, match=f"{search.__name__}: .*{message}"):
            search(lattice, [[], []], None)
