"""Searches with transition scores and with local normalization beside the search without them.

    python benchmarks/bench_transitions.py [--quick]

WikiText-2, 4-gram LM, 8 slots x 16 candidates, a random score for each pair of candidates of
adjacent slots. Answers come first: both engines must give the same list, and every instruction set
the same bits. Then the searches take turns, over different lattices in rotation, as in
bench_rescore.py; a time is that of a call with ten lattices, arrays of candidates and transitions
included, divided by ten. Results go to benchmarks/results/transitions.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from corpus import ROOT, load_corpus
from engines import PART, make_lm
from lattices import Lattices, draw_lattices, rescore_arguments
from machine import describe_machine
from report import print_table, write_json
from timing import Contender, time_in_turns

from lattice_bpd import NGramLM, _core

DRAFTS = 16
NODES = 36
CHECKED = 20  # lattices
WAYS = {  # whether there are transitions, normalization
    "plain": (False, "global"),
    "transitions": (True, "global"),
    "local": (False, "local"),
    "transitions_local": (True, "local"),
}


class Searches:
    """The three searches of a part of the lattices, from arrays."""

    def __init__(self, lattices: Lattices, transitions: Any, lm: NGramLM, way: str) -> None:
        has_transitions, self.normalization = WAYS[way]
        (token_ids, scores), *rest = rescore_arguments(lattices, lm, DRAFTS, "fused")
        self.arrays = (token_ids, scores, transitions if has_transitions else None)
        self.common = rest[:4]  # LM, contexts, offsets, bos

    def find_list(self, engine: str = "fused") -> tuple[Any, ...]:
        """The best drafts."""
        return _core.rescore(
            _core.sausages_of(*self.arrays), *self.common, DRAFTS, 1.0, engine, 1,
            self.normalization,
        )  # fmt: skip

    def find_tree(self) -> tuple[Any, ...]:
        """The most probable prefixes."""
        return _core.find_trees(
            _core.sausages_of(*self.arrays), *self.common, NODES, 1.0, 1, self.normalization
        )

    def find_chain(self) -> tuple[Any, ...]:
        """The draft of greatest expected accept length."""
        return _core.find_chains(
            _core.sausages_of(*self.arrays), *self.common, 1.0, 1, False, self.normalization
        )


SEARCHES = {
    f"list_p{DRAFTS}": Searches.find_list,
    f"tree_{NODES}_nodes": Searches.find_tree,
    "chain": Searches.find_chain,
}


def make_transitions(lattices: Lattices) -> Any:
    """(N, H-1, k, k) float32 as noisy as the heads' scores."""
    count, slots, k = lattices.token_ids.shape
    rng = np.random.default_rng(1)
    return rng.normal(0, 2, (count, slots - 1, k, k)).astype(np.float32)


def check_answers(lattices: Lattices, transitions: Any, lm: NGramLM) -> None:
    """Asserts that engines and instruction sets agree."""
    made = Searches(lattices, transitions, lm, "transitions")
    fused, openfst = made.find_list("fused"), made.find_list("openfst")
    np.testing.assert_array_equal(fused[0], openfst[0])
    np.testing.assert_array_equal(fused[1], openfst[1])
    for way in WAYS:
        made = Searches(lattices, transitions, lm, way)
        for find in SEARCHES.values():
            expected = find(made)
            for name in _core.fused_instruction_sets():
                _core.set_fused_instruction_set(name)
                for ours, theirs in zip(find(made), expected, strict=True):
                    np.testing.assert_array_equal(ours, theirs)
            _core.set_fused_instruction_set("")


def measure_searches(
    lattices: Lattices, transitions: Any, lm: NGramLM, rounds: int
) -> dict[str, Any]:
    """Times of each search in each way; `ratio` is that of the median to "plain"."""
    names = [(search, way) for search in SEARCHES for way in WAYS]
    pairs = [transitions[n * PART : (n + 1) * PART] for n in range(len(lattices.token_ids) // PART)]
    contenders = [
        Contender(
            SEARCHES[search],
            [
                Searches(part, of_part, lm, way)
                for part, of_part in zip(lattices.split(PART), pairs, strict=True)
            ],
        )
        for search, way in names
    ]
    measured = dict(
        zip(names, time_in_turns(contenders, items_per_call=PART, rounds=rounds), strict=True)
    )
    results: dict[str, Any] = {search: {} for search in SEARCHES}
    for (search, way), times in measured.items():
        ratio = round(times.median / measured[search, "plain"].median, 2)
        results[search][way] = {**times.to_json(), "ratio": ratio}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer lattices")
    default = ROOT / "benchmarks" / "results" / "transitions.json"
    parser.add_argument("--out", type=Path, default=default)
    args = parser.parse_args()
    corpus = load_corpus()
    lm = make_lm("corpus.lm", corpus)
    lattices = draw_lattices(corpus, 100 if args.quick else 500, 8, 16)
    transitions = make_transitions(lattices)
    check_answers(lattices.take(0, CHECKED), transitions[:CHECKED], lm)
    results = measure_searches(lattices, transitions, lm, 3 if args.quick else 10)
    rows = [
        [search, way, times["median_us"], times["p90_us"], times["ratio"]]
        for search, ways in results.items()
        for way, times in ways.items()
    ]
    head = ["search", "scores", "median", "90 %", "ratio"]
    print_table(f"{corpus.name}, 8 x 16, us", head, rows)
    write_json(
        args.out, {"machine": describe_machine(), "corpus": corpus.name, "searches": results}
    )
    print(f"\n{args.out.name}: written")


if __name__ == "__main__":
    main()
