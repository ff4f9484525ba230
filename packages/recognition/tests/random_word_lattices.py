"""Random word lattices, and what OpenFst and brute force find in them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lattice_bpd import NGramLM
from lattice_bpd_recognition import Lattice

GRID = 1024.0  # costs are multiples of 1/GRID, exact in float32


def names(num_words: int) -> list[str]:
    """Words whose alphabetical order is that of their ids."""
    return [f"w{i:03}" for i in range(num_words)]


def random_lattice(
    rng: np.random.Generator, num_states: int, num_arcs: int, num_words: int, *, ties: bool = False
) -> Lattice:
    """An acyclic lattice in which every state is reached; arcs with epsilon among them."""
    sources, targets = [], []
    for state in range(1, num_states):
        sources.append(int(rng.integers(max(0, state - 4), state)))
        targets.append(state)
    while len(sources) < num_arcs:
        state = int(rng.integers(0, num_states - 1))
        sources.append(state)
        targets.append(min(state + int(rng.integers(1, 6)), num_states - 1))
    count = len(sources)
    words = rng.integers(0, num_words, count)
    words[rng.random(count) < 0.15] = -1
    high = 4 if ties else 4096
    scale = 1.0 if ties else GRID

    def costs(size: int) -> Any:
        return rng.integers(-high // 4, high, size) / scale

    ends = np.where(rng.random(num_states) < 0.2, costs(num_states), np.inf)
    ends[-1] = 0.5
    order = rng.permutation(count)
    rename = np.concatenate([[0], 1 + rng.permutation(num_states - 1)])
    finals = np.full(num_states, np.inf)
    finals[rename] = ends
    return Lattice(
        names(num_words), 0,
        rename[np.array(sources)[order]].astype(np.int32),
        rename[np.array(targets)[order]].astype(np.int32),
        words[order].astype(np.int32), costs(count), costs(count), finals,
        np.where(np.isfinite(finals), 0.25, np.inf),
    )  # fmt: skip


def to_fst(lattice: Lattice) -> Any:
    """The lattice as pywrapfst's FST: labels are word id + 1."""
    import pywrapfst

    fst = pywrapfst.VectorFst()
    for _ in range(lattice.num_states):
        fst.add_state()
    fst.set_start(lattice.start)
    for i in range(lattice.num_arcs):
        label = int(lattice.word_ids[i]) + 1
        cost = float(lattice.graph_costs[i] + lattice.acoustic_costs[i])
        weight = pywrapfst.Weight("tropical", cost)
        fst.add_arc(
            int(lattice.sources[i]), pywrapfst.Arc(label, label, weight, int(lattice.targets[i]))
        )
    for state in range(lattice.num_states):
        cost = float(lattice.final_graph[state] + lattice.final_acoustic[state])
        if math.isfinite(cost):
            fst.set_final(state, pywrapfst.Weight("tropical", cost))
    return fst


def openfst_paths(
    lattice: Lattice, lm: NGramLM, alpha: float, count: int
) -> list[tuple[float, tuple[int, ...]]]:
    """(cost, word ids) of the best distinct sequences by composition and ShortestPath."""
    import pywrapfst

    model = lm.to_pywrapfst(expand_failures=True, end_of_sentence=True)
    model = pywrapfst.arcmap(model, map_type="power", power=alpha)
    composed = pywrapfst.compose(to_fst(lattice).arcsort("olabel"), model.arcsort("ilabel"))
    composed.rmepsilon()
    best = pywrapfst.shortestpath(composed, nshortest=count, unique=True)
    return sorted(strings_of(best))


def strings_of(fst: Any) -> list[tuple[float, tuple[int, ...]]]:
    """Cost and word ids of all paths of an acyclic FST."""
    found = []

    def walk(state: int, cost: float, words: tuple[int, ...]) -> None:
        final = float(fst.final(state))
        if math.isfinite(final):
            found.append((cost + final, words))
        for arc in fst.arcs(state):
            more = words if arc.ilabel == 0 else (*words, arc.ilabel - 1)
            walk(arc.nextstate, cost + float(arc.weight), more)

    if fst.start() >= 0:
        walk(fst.start(), 0.0, ())
    return found


def all_strings(lattice: Lattice) -> dict[tuple[int, ...], float]:
    """The lowest lattice cost of each sequence, by enumerating all paths."""
    best: dict[tuple[int, ...], float] = {}
    for rounded, words in strings_of(to_fst(lattice)):
        cost = round(rounded * GRID) / GRID  # pywrapfst gives nine digits
        best[words] = min(best.get(words, math.inf), cost)
    return best
