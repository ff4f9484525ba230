"""Drafts from acceptors of any shape, against the list of all their paths."""

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_bpd import Drafts, NGramLM, rescore_fst
from lattice_bpd.lm import read_lm
from oracles import ArpaOracle, random_arpa, read_arpa, to_grid

fst = pytest.importorskip("pywrapfst")

Arc = tuple[int, int, float]  # label, next state, cost
Graph = dict[int, list[Arc]]


def build(graph: Graph, finals: dict[int, float], arc_type: str = "standard") -> Any:
    """An acceptor whose start is state 0."""
    out = fst.VectorFst(arc_type)
    out.add_states(1 + max([*graph, *finals, *(a[1] for arcs in graph.values() for a in arcs)]))
    out.set_start(0)
    for state, arcs in graph.items():
        for label, to, cost in arcs:
            out.add_arc(state, fst.Arc(label, label, fst.Weight(out.weight_type(), cost), to))
    for state, cost in finals.items():
        out.set_final(state, fst.Weight(out.weight_type(), cost))
    return out


def list_sequences(graph: Graph, finals: dict[int, float]) -> dict[tuple[int, ...], float]:
    """The least cost of every token sequence."""
    best: dict[tuple[int, ...], float] = {}
    stack = [(0, (), 0.0)]
    while stack:
        state, tokens, cost = stack.pop()
        if state in finals:
            total = cost + to_grid(finals[state])
            best[tokens] = min(best.get(tokens, math.inf), total)
        for label, to, weight in graph.get(state, ()):
            longer = (*tokens, label - 1) if label else tokens
            stack.append((to, longer, cost + to_grid(weight)))
    return {tokens: cost for tokens, cost in best.items() if cost < math.inf}


def rank(
    sequences: dict[tuple[int, ...], float], lm: ArpaOracle | None, context: list[int], alpha: float
) -> list[tuple[tuple[int, ...], float]]:
    ranked = []
    for tokens, cost in sequences.items():
        score = -cost
        history = lm.history(context) if lm else ()
        for i in range(len(tokens) if lm else 0):
            parts = lm.parts((*history, *tokens[:i]), tokens[i])
            score += sum(to_grid(alpha * part) for part in parts)
        ranked.append((tokens, score))
    return sorted(ranked, key=lambda path: (-path[1], path[0]))


def check(drafts: Drafts, expected: list[tuple[tuple[int, ...], float]]) -> None:
    limit = drafts.scores.shape[1]
    assert drafts.counts.tolist() == [min(limit, len(expected))]
    for i, (tokens, score) in enumerate(expected[:limit]):
        assert drafts.lengths[0, i] == len(tokens)
        assert tuple(drafts.token_ids[0, i, : len(tokens)].tolist()) == tokens
        assert (drafts.token_ids[0, i, len(tokens) :] == Drafts.PAD_TOKEN).all()
        assert drafts.scores[0, i] == np.float32(score)
    longest = max((len(tokens) for tokens, _ in expected[:limit]), default=0)
    assert drafts.token_ids.shape == (1, limit, longest)


def random_graph(rng: np.random.Generator, vocab_size: int) -> tuple[Graph, dict[int, float]]:
    """A random acyclic graph: epsilons, equal labels, dead ends, arcs that nothing passes."""
    states = int(rng.integers(1, 8))
    graph: Graph = {}
    for state in range(states - 1):
        arcs = []
        for _ in range(rng.integers(0, 5)):
            label = 0 if rng.random() < 0.15 else int(rng.integers(1, vocab_size + 1))
            cost = math.inf if rng.random() < 0.05 else float(rng.integers(-4, 9)) / 4
            arcs.append((label, int(rng.integers(state + 1, states)), cost))
        graph[state] = arcs
    finals = {s: float(rng.integers(0, 5)) / 4 for s in range(states) if rng.random() < 0.3}
    return graph, {**finals, states - 1: 0.25}


@pytest.mark.parametrize("seed", range(40))
def test_any_acyclic_acceptor(seed: int, rng: np.random.Generator, core_of: Any) -> None:
    vocab_size = int(rng.integers(1, 7))
    text = random_arpa(rng, vocab_size, int(rng.integers(1, 5)), ngrams=20)
    lm, oracle = core_of(text, vocab_size=vocab_size), read_arpa(text)
    for _ in range(15):
        graph, finals = random_graph(rng, vocab_size)
        context = rng.integers(0, vocab_size, rng.integers(0, 4)).tolist()
        alpha, limit = float(rng.choice([1.0, 0.0, -0.5])), int(rng.choice([1, 3, 10, 200]))
        with_lm = rng.random() < 0.8
        drafts = rescore_fst(build(graph, finals), lm if with_lm else None, limit, context, alpha)
        sequences = list_sequences(graph, finals)
        check(drafts, rank(sequences, oracle if with_lm else None, context, alpha))


def test_no_path_no_draft(small_lm: NGramLM) -> None:
    for nothing in (fst.VectorFst(), build({0: [(1, 1, math.inf)]}, {1: 0})):
        drafts = rescore_fst(nothing, small_lm, 3)
        assert drafts.counts.tolist() == [0]
        assert drafts.token_ids.shape == (1, 3, 0)
    only_the_empty_one = rescore_fst(build({}, {0: 1.5}), small_lm, 1)
    assert only_the_empty_one.scores.tolist() == [[-1.5]]


def transducer() -> Any:
    out = build({0: [(1, 1, 0)]}, {1: 0})
    out.add_arc(0, fst.Arc(1, 2, 0, 1))
    return out


ACCEPTOR = build({0: [(1, 1, 0.5)]}, {1: 0})


def with_weight(weight: float) -> bytes:
    """Weights that pywrapfst refuses to make."""
    return ACCEPTOR.write_to_string().replace(struct.pack("<f", 0.5), struct.pack("<f", weight))


def with_arc_to(state: int) -> bytes:
    arc = struct.pack("<iif", 1, 1, 0.5)
    data = ACCEPTOR.write_to_string()
    return data.replace(arc + struct.pack("<i", 1), arc + struct.pack("<i", state))


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "a list": ([1], TypeError, "acceptor is a list"),
    "no FST": (b"nonsense", ValueError, "8 bytes that are no FST"),
    "cut": (ACCEPTOR.write_to_string()[:-6], ValueError, "cut or altered"),
    "log arcs": (build({0: [(1, 1, 0)]}, {1: 0}, "log"), ValueError, 'arcs of type "log"'),
    "const bytes": (fst.convert(ACCEPTOR, "const").write_to_string(), ValueError, 'type "const"'),
    "a transducer": (transducer(), ValueError, "labels 1:2 at state 0"),
    "a cycle": (build({0: [(1, 1, 0)], 1: [(2, 0, 0)]}, {1: 0}), ValueError, "cycle"),
    "an epsilon cycle": (build({0: [(0, 0, 0), (1, 1, 0)]}, {1: 0}), ValueError, "cycle"),
    "-inf": (with_weight(-math.inf), ValueError, "weight -inf at state 0"),
    "NaN": (with_weight(math.nan), ValueError, "weight nan at state 0"),
    "token id": (build({0: [((1 << 21) + 5, 1, 0)]}, {1: 0}), ValueError, "token id 2097156"),
    "arc to nowhere": (with_arc_to(77), ValueError, "state 0 to state 77 of 2"),
    "too long": (build({s: [(1, s + 1, 0)] for s in range(1025)}, {1025: 0}), ValueError, "1024"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors(case: str, small_lm: NGramLM) -> None:
    acceptor, error, message = BAD[case]
    with pytest.raises(error, match=message):
        rescore_fst(acceptor, small_lm)


@pytest.mark.parametrize("kind", ["acceptor", "vector", "const"])
@pytest.mark.parametrize("seed", range(20))
def test_altered_bytes_are_refused_or_read(
    seed: int, kind: str, rng: np.random.Generator, small_lm: NGramLM, tmp_path: Path
) -> None:
    data = build(*random_graph(np.random.default_rng(99), 5)).write_to_string()
    if kind != "acceptor":
        data = fst.convert(small_lm.to_pywrapfst(), kind).write_to_string()
    refused = 0
    for _ in range(30):
        changed = bytearray(data)
        for _ in range(rng.integers(1, 6)):
            changed[rng.integers(30, len(data))] = rng.integers(256)
        try:
            if kind == "acceptor":
                drafts = rescore_fst(bytes(changed), None, 5)
                assert not np.isnan(drafts.scores).any()
                assert (drafts.token_ids >= -1).all()
            else:
                (tmp_path / "lm.fst").write_bytes(changed)
                read_lm(tmp_path / "lm.fst", vocab_size=4).log_prob(0, [1, 2])
        except ValueError:
            refused += 1
    assert refused >= 10
