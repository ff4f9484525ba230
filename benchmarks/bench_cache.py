"""The search with a cache beside the search without one: lists of 16 drafts, trees of 36 nodes.

    python benchmarks/bench_cache.py [--quick] [--text 500]

WikiText-2, 4-gram LM, 8 slots x 16 candidates; caches of order 4 that hold 500 tokens of running
text, one for each lattice. Answers come first: every draft's score must be what the LM, the cache
and the heads say, and every instruction set must give the same bits. Then the four searches take
turns, over different lattices in rotation, as in bench_rescore.py; a time is that of a call with
ten lattices, divided by ten. Results go to benchmarks/results/cache.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from corpus import ROOT, load_corpus
from engines import PART, make_lm
from lattices import Lattices, draw_lattices, make_caches, rescore_arguments, tree_arguments
from machine import describe_machine
from report import print_table, write_json
from timing import Contender, time_in_turns

from lattice_bpd import NGramLM, _core
from lattice_bpd.lm import ContextNGram

DRAFTS = 16
NODES = 36
CHECKED = 20  # lattices

Call = Callable[[Any], Any]


def measure_searches(
    lattices: Lattices, lm: NGramLM, caches: list[ContextNGram], rounds: int
) -> dict[str, Any]:
    """Times of both searches, without and with a cache; `ratio` is that of their medians."""
    parts = lattices.split(PART)
    calls: dict[str, tuple[Call, list[Any]]] = {
        f"list_p{DRAFTS}": (
            lambda arguments: _core.rescore_candidates(*arguments),
            [rescore_arguments(part, lm, DRAFTS, "fused") for part in parts],
        ),
        f"tree_{NODES}_nodes": (
            lambda arguments: _core.tree_of_candidates(*arguments),
            [tree_arguments(part, lm, NODES) for part in parts],
        ),
    }
    contenders = []
    for call, plain in calls.values():
        contenders += [Contender(call, plain), Contender(call, _with_caches(plain, caches))]
    times = time_in_turns(contenders, items_per_call=PART, rounds=rounds)
    results = {}
    for n, name in enumerate(calls):
        without, cached = times[2 * n : 2 * n + 2]
        results[name] = {
            "without": without.to_json(),
            "with": cached.to_json(),
            "ratio": round(cached.median / without.median, 2),
        }
    return results


def check_answers(lattices: Lattices, lm: NGramLM, caches: list[ContextNGram]) -> None:
    """Asserts that scores are those of the definition, and the same in every instruction set."""
    drafts = _with_caches([rescore_arguments(lattices, lm, DRAFTS, "fused")], caches)[0]
    tree = _with_caches([tree_arguments(lattices, lm, NODES)], caches)[0]
    token_ids, scores, counts = _core.rescore_candidates(*drafts)
    for n, (context, cache) in enumerate(zip(lattices.contexts, caches, strict=True)):
        for path, score in zip(token_ids[n, : counts[n]], scores[n], strict=False):
            heads = lattices.scores[n][lattices.token_ids[n] == path[:, None]].sum()
            text = [int(token) for token in (*context, *path)]
            parts = [
                cache.log_prob(token, text[: len(context) + at], lm)
                for at, token in enumerate(text[len(context) :])
            ]
            np.testing.assert_allclose(score, heads + sum(parts), rtol=0, atol=1e-3)
    expected = (*_core.rescore_candidates(*drafts), *_core.tree_of_candidates(*tree))
    for name in _core.fused_instruction_sets():
        _core.set_fused_instruction_set(name)
        arrays = (*_core.rescore_candidates(*drafts), *_core.tree_of_candidates(*tree))
        for ours, theirs in zip(arrays, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    _core.set_fused_instruction_set("")


def _with_caches(arguments: list[Any], caches: list[ContextNGram]) -> list[Any]:
    """The same calls; the caches are dealt out in their order."""
    made = []
    for first in arguments:
        count = len(first[0])
        taken, caches = caches[:count], caches[count:]
        made.append((*first, [cache._core for cache in taken]))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer lattices")
    parser.add_argument("--text", type=int, default=500, help="tokens of a cache's text")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "cache.json")
    args = parser.parse_args()
    corpus = load_corpus()
    lm = make_lm("corpus.lm", corpus)
    lattices = draw_lattices(corpus, 100 if args.quick else 500, 8, 16)
    caches = make_caches(corpus, lattices, lm, args.text)
    check_answers(lattices.take(0, CHECKED), lm, caches[:CHECKED])
    results = measure_searches(lattices, lm, caches, 3 if args.quick else 10)
    rows = [
        [name, way, row[way]["median_us"], row[way]["p90_us"], row["ratio"]]
        for name, row in results.items()
        for way in ("without", "with")
    ]
    head = ["search", "cache", "median", "90 %", "ratio"]
    print_table(f"{corpus.name}, caches of {args.text} tokens, 8 x 16, us", head, rows)
    about = {"machine": describe_machine(), "corpus": corpus.name, "text_tokens": args.text}
    write_json(args.out, {**about, **results})
    print(f"\n{args.out.name}: written")


if __name__ == "__main__":
    main()
