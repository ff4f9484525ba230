"""The search of word lattices equals OpenFst's and brute force; its lattices and paths add up."""

import dataclasses
import warnings

import numpy as np
import pytest

from lattice_bpd import NGramLM, rescore_fst
from lattice_bpd_recognition import (
    Lattice,
    LatticeError,
    RescoredLattice,
    rescore_lattice,
    rescore_lattices,
    rescore_nbest,
)
from random_word_lattices import all_strings, names, openfst_paths, random_lattice, to_fst

V = 12


@pytest.fixture(scope="module")
def lm() -> NGramLM:
    rng = np.random.default_rng(7)
    texts = [(V * rng.random(rng.integers(1, 12)) ** 1.5).astype(np.int32) for _ in range(200)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lm = NGramLM.train(texts, 3, vocab_size=V, smoothing="witten_bell", unseen="uniform")
    return lm.prune(theta=1e-4).with_words(names(V))


def test_equal_to_openfst_on_1000_lattices(lm: NGramLM, rng: np.random.Generator) -> None:
    """Composition with the LM, all failures written out, and ShortestPath of distinct strings."""
    pytest.importorskip("pywrapfst")
    found_any = 0
    for number in range(1000):
        lattice = random_lattice(rng, int(rng.integers(2, 14)), int(rng.integers(1, 30)), V)
        alpha, count = float(rng.choice([0.25, 0.5, 1.0, 2.0])), int(rng.integers(1, 12))
        expected = openfst_paths(lattice, lm, alpha, count)
        paths = rescore_lattice(lattice, lm, alpha, num_paths=count).paths
        costs = [-path.total for path in paths]
        np.testing.assert_allclose(costs, [cost for cost, _ in expected], rtol=0, atol=2e-4)
        assert costs == sorted(costs)
        # In float32 two sequences may change places where their costs are nearly equal.
        by_words = {words: cost for cost, words in expected}
        for path in paths:
            ids = tuple(lm_id(word) for word in path.words)
            if ids in by_words:
                assert -path.total == pytest.approx(by_words[ids], abs=2e-4), number
            else:
                assert -path.total == pytest.approx(expected[-1][0], abs=4e-4), number
        found_any += len(paths)
    assert found_any > 3000


def lm_id(word: str) -> int:
    return int(word[1:])


def test_the_same_bits_as_our_reference_engine(lm: NGramLM, rng: np.random.Generator) -> None:
    """rescore_fst composes by OpenFst in double, with failure arcs; it has no </s>."""
    for _ in range(150):
        lattice = random_lattice(rng, int(rng.integers(2, 10)), int(rng.integers(1, 20)), V)
        data = bytes(to_fst(lattice).write_to_string())
        drafts = rescore_fst(data, lm, 8, alpha=0.5, engine="openfst")
        paths = rescore_lattice(lattice, lm, 0.5, num_paths=8, eos=False).paths
        number = int(drafts.counts[0])
        assert [tuple(lm_id(word) for word in path.words) for path in paths] == [
            tuple(drafts.token_ids[0, i, : drafts.lengths[0, i]].tolist()) for i in range(number)
        ]
        assert [np.float32(path.total) for path in paths] == drafts.scores[0, :number].tolist()


@pytest.mark.parametrize("ties", [False, True])
def test_all_sequences_in_order(lm: NGramLM, rng: np.random.Generator, ties: bool) -> None:
    """Every sequence once, at its lowest cost; ties by word, a prefix before what it begins."""
    for _ in range(200):
        lattice = random_lattice(rng, 7, 14, 4, ties=ties)
        expected = sorted((cost, words) for words, cost in all_strings(lattice).items())
        paths = rescore_lattice(lattice, lm, 0.0, num_paths=100_000).paths
        assert [(-path.total, tuple(map(lm_id, path.words))) for path in paths] == expected


def test_paths_add_up(lm: NGramLM, rng: np.random.Generator) -> None:
    for _ in range(100):
        lattice = random_lattice(rng, 9, 20, V)
        paths = rescore_lattice(
            lattice, lm, 0.7, 0.3, num_paths=5, graph_scale=0.5, acoustic_scale=2.0
        ).paths
        for path in paths:
            state = lattice.start
            for arc in path.arcs:
                assert lattice.sources[arc] == state
                state = lattice.targets[arc]
            assert state == path.end_state
            words = [lattice.words[w] for w in lattice.word_ids[path.arcs] if w >= 0]
            assert tuple(words) == path.words
            graph = lattice.graph_costs[path.arcs].sum() + lattice.final_graph[state]
            acoustic = lattice.acoustic_costs[path.arcs].sum() + lattice.final_acoustic[state]
            assert (path.graph_cost, path.acoustic_cost) == (graph, acoustic)
            row = rescore_nbest([[(path.text, -0.5 * graph - 2.0 * acoustic)]], lm, 0.7, 0.3)[0][0]
            assert path.log_prob == pytest.approx(row.log_prob)
            assert path.total == pytest.approx(row.total, abs=1e-4)


def test_the_rescored_lattice_has_the_same_paths(lm: NGramLM, rng: np.random.Generator) -> None:
    for _ in range(100):
        lattice = dataclasses.replace(
            random_lattice(rng, 9, 20, V), alignments=[f"a{i}" for i in range(20)],
            final_alignments=[f"f{i}" for i in range(9)],
        )  # fmt: skip
        result = rescore_lattice(lattice, lm, 0.7, 0.3, num_paths=50, rescored=True)
        after = result.lattice
        assert after is not None
        again = rescore_lattice(after, lm, 0.0, num_paths=50)
        assert [p.words for p in again.paths] == [p.words for p in result.paths]
        np.testing.assert_allclose(
            [p.total for p in again.paths], [p.total for p in result.paths], atol=1e-5
        )
        best = again.paths[0]
        assert after.alignments is not None
        assert lattice.alignments is not None
        assert [after.alignments[arc] for arc in best.arcs] == [
            lattice.alignments[arc] for arc in result.paths[0].arcs
        ]
        # Its scores can be taken out again.
        back = rescore_lattice(after, lm, -0.7, -0.3, num_paths=50)
        first = rescore_lattice(lattice, lm, 0.0, num_paths=50)
        np.testing.assert_allclose(
            [p.total for p in back.paths], [p.total for p in first.paths], atol=1e-4
        )


def small(
    sources: list[int], targets: list[int], finals: list[float], **changes: object
) -> Lattice:
    count, states = len(sources), len(finals)
    lattice = Lattice(
        ["w000"], 0, np.array(sources, np.int32), np.array(targets, np.int32),
        np.zeros(count, np.int32), np.ones(count), np.zeros(count), np.array(finals),
        np.zeros(states), lines=list(range(2, 2 + count)), file="x.lat", utterance="u1",
    )  # fmt: skip
    return dataclasses.replace(lattice, **changes)  # type: ignore[arg-type]


INF = np.inf


@pytest.mark.parametrize(
    ("lattice", "message"),
    [
        (
            small([0, 1, 2, 2], [1, 2, 1, 3], [INF, INF, INF, 0]),
            "line [34] .utterance u1.*of a cycle",
        ),
        (small([0, 0], [0, 1], [INF, 0]), "line 2 .*from state 0 to 0 is part of a cycle"),
        (small([0, 2], [1, 1], [INF, 0, INF]), "line 3 .*no path from the start 0 reaches state 2"),
        (small([0], [1], [INF, INF]), "no path ends in a final state"),
        (small([], [], [INF]), "no path ends"),
    ],
)
def test_faults_name_file_and_line(lm: NGramLM, lattice: Lattice, message: str) -> None:
    with pytest.raises(LatticeError, match=r"x\.lat.*" + message):
        rescore_lattice(lattice, lm, 1.0)


def test_the_others_are_rescored(lm: NGramLM) -> None:
    good, bad = small([0], [1], [INF, 0]), small([0, 0], [0, 1], [INF, 0])
    unread = LatticeError("x.lat, line 9: no state")
    for threads in (0, 1, 3):
        results = list(rescore_lattices([good, bad, unread, good] * 5, lm, 1.0, threads=threads))
        kinds = [isinstance(result, RescoredLattice) for _, result in results]
        assert kinds == [True, False, False, True] * 5
        assert results[2][1] is unread


def test_numbers_of_one_lattice_do_not_stop_the_others(lm: NGramLM) -> None:
    good = small([0], [1], [INF, 0])
    for cost in (np.nan, -np.inf, 1e9):
        bad = small([0], [1], [INF, 0], graph_costs=np.array([cost]))
        (_, first), (_, second) = rescore_lattices([bad, good], lm, 1.0)
        assert isinstance(first, LatticeError)
        assert str(first).startswith("x.lat, line 2 (utterance u1): word lattice: the cost")
        assert isinstance(second, RescoredLattice)


def test_infinite_costs_are_no_arcs(lm: NGramLM) -> None:
    lattice = small([0, 0], [1, 1], [INF, 0], graph_costs=np.array([INF, 2.0]))
    paths = rescore_lattice(lattice, lm, 0.0, num_paths=9).paths
    assert [path.arcs.tolist() for path in paths] == [[1]]


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"graph_costs": np.array([np.nan])}, {}, "cost nan"),
        ({"graph_costs": np.array([-np.inf])}, {}, "cost -inf"),
        ({"graph_costs": np.array([1e9])}, {}, "add up to 1e"),
        ({}, {"acoustic_scale": np.nan}, "acoustic_scale"),
        ({}, {"num_paths": 0}, "num_paths"),
        ({}, {"alpha": np.nan}, "alpha"),
        ({}, {"alpha": 1e6}, "alpha is 1000000"),
    ],
)
def test_bad_numbers(lm: NGramLM, changes: dict, options: dict, message: str) -> None:
    options = {"alpha": 1.0, **options}
    with pytest.raises(ValueError, match=message):
        rescore_lattice(small([0], [1], [INF, 0], **changes), lm, **options)


def test_arrays_of_every_kind(lm: NGramLM) -> None:
    """Lists and arrays of other types are taken; what does not fit is refused at once."""
    plain = small([0], [1], [INF, 0])
    lists = dataclasses.replace(
        plain, word_ids=[0], graph_costs=[1], acoustic_costs=np.zeros(1, np.float32)
    )
    (found,), (expected,) = (rescore_lattice(one, lm, 1.0).paths for one in (lists, plain))
    assert (found.words, found.total) == (expected.words, expected.total)
    for changes, message in (
        ({"targets": [2]}, "targets 2..2; expected 0..1"),
        ({"sources": [-1]}, "sources -1..-1; expected 0..1"),
        ({"word_ids": [1]}, "word_ids 1..1; expected -1..0"),
        ({"word_ids": [-2]}, "word_ids -2..-2"),
        ({"word_ids": [0, 0]}, r"word_ids has shape \(2,\)"),
        ({"targets": [0.5]}, "targets has shape"),
        ({"start": 2}, "start 2..2"),
        ({"start": -1}, "start -1..-1"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def test_a_long_lattice_with_very_many_paths(lm: NGramLM) -> None:
    """2**2000 paths; what is kept grows with the number of sequences that are asked for."""
    slots = 2000
    sources = np.repeat(np.arange(slots), 2).astype(np.int32)
    lattice = Lattice(
        names(V), 0, sources, sources + 1, np.tile([0, 1], slots).astype(np.int32),
        np.tile([0.0, 1.0], slots), np.zeros(2 * slots),
        np.r_[np.full(slots, INF), 0.0], np.zeros(slots + 1),
    )  # fmt: skip
    paths = rescore_lattice(lattice, lm, 0.5, num_paths=20).paths
    assert len({path.words for path in paths}) == 20
    assert all(len(path.words) == slots for path in paths)
