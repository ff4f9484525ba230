"""Rescoring time of both engines, of Python's share and of top-k; answers are compared first.

    python benchmarks/bench_rescore.py                  everything
    python benchmarks/bench_rescore.py --quick          fewer lattices, no large LM
    python benchmarks/bench_rescore.py --instructions   instruction counts alone, see
                                                        instruction_baseline.py
    python benchmarks/bench_rescore.py --cache-lines    cache lines that a search accesses, see
                                                        cache_lines.py

A time is that of one call of the core with ten lattices, divided by ten (one for alternating
engines), over 500 different lattices in rotation: the lines of the LM that a lattice needs are
rarely in the cache. Each engine has passes of its own, by turns, except where they alternate. The
clock is the CPU time of the calling thread; only the batches on two threads take the wall clock.
Arguments of the core are made before the clock starts.
Results go to benchmarks/results/rescore.json; `summary` has the figures that matter.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from batches import SIMULATED, SIZES, simulate_threads, time_batches
from cache_lines import measure_cache_lines
from corpus import (
    CACHE,
    ID_FACTOR,
    LARGE_VOCAB_SIZE,
    ROOT,
    VOCAB_SIZE,
    Corpus,
    load_corpus,
    make_dense_text,
    make_large_text,
    multiply_ids,
)
from demo_lattices import find_demo_model, record_lattices
from engines import (
    PART,
    bytes_per_ngram,
    compare_engines,
    engine_contender,
    make_lm,
    make_row,
    time_fused,
)
from instruction_baseline import check_instructions
from lattices import (
    Lattices,
    check_engines_agree,
    check_scores,
    draw_lattices,
    rescore,
    tree_arguments,
)
from machine import describe_machine
from pywrapfst_peer import measure_pywrapfst
from report import PAPER_BY_DRAFTS, PAPER_BY_SHAPE, print_comparison, print_table, write_json
from timing import Contender, time_alternating, time_in_turns
from top_k import measure_top_k
from valgrind_counts import MissingValgrindError

from lattice_bpd import NGramLM, SausageLattice, _core, rescore_lattice
from lattice_bpd.lattice.logits import select_top_k

COPIES = 10  # of the corpus, for the large LM
DENSE_TEXT = 42_000_000  # tokens


class Bench:
    """One run; every `measure_` method adds to `results`."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.count = 100 if args.quick else 500
        self.rounds = 3 if args.quick else 10
        self.corpus = load_corpus()
        self.lm = make_lm("corpus.lm", self.corpus)
        self.summary: dict[str, Any] = {}
        self.results: dict[str, Any] = {"summary": self.summary, "machine": describe_machine()}
        self.results["corpus"] = self.corpus.name
        self.main = self.sample(8, 16)
        self.summary["bytes_per_ngram"] = bytes_per_ngram(self.lm, "corpus.lm")
        print(f"{self.corpus.name}: {sum(self.lm.num_ngrams):,} n-grams")

    def sample(self, slots: int, top_k: int) -> Lattices:
        return draw_lattices(self.corpus, self.count, slots, top_k)

    def measure_engines(self) -> None:
        """The comparisons in passes of their own: tables 12 and 13, and the goals."""
        by_drafts = [
            self.compare("corpus", self.lm, self.main, p, p in (1, 16)) for p in PAPER_BY_DRAFTS
        ]
        print_comparison("8 x 16 by the number of paths (paper: table 12)", by_drafts)
        by_shape = [
            self.compare("corpus", self.lm, self.sample(*shape), 1, False)
            for shape in PAPER_BY_SHAPE
        ]
        print_comparison("1-best by shape (paper: table 13)", by_shape)
        goals = [
            self.compare("corpus", self.lm, self.sample(*shape), 16, True)
            for shape in ((16, 16), (8, 4), (4, 2))
        ]
        print_comparison("16 best paths", [*goals, by_drafts[-1]])
        self.results["engines"] = by_drafts + by_shape + goals
        for row in (by_drafts[-1], *goals):
            shape_name = f"{row['slots']}x{row['top_k']}"
            self.summary[f"ratio_{shape_name}_p16"] = row["ratio"]
            self.summary[f"fused_us_{shape_name}_p16"] = row["fused"]["median_us"]
        self.summary["ratio_8x16_p1"] = by_drafts[0]["ratio"]

    def measure_alternating(self) -> None:
        """Both engines lattice by lattice."""
        lattices = self.main.split(1)[:200]
        fused, openfst = time_alternating(
            [engine_contender(self.lm, 16, engine, lattices) for engine in ("fused", "openfst")]
        )
        row = make_row("corpus", self.main, 16, fused, openfst)
        print_comparison("engines alternating, one lattice a call", [row])
        self.results["alternating"] = row
        self.summary["ratio_8x16_p16_alternating"] = row["ratio"]

    def measure_recorded(self) -> None:
        """Lattices of the demo's model, with the demo's own LM."""
        directory = find_demo_model(self.args.demo)
        if directory is None:
            print("\nnote: no demo model (run `make demo`); recorded lattices are left out")
            return
        try:
            recording = record_lattices(directory, self.count, 16)
        except ImportError as error:
            print(f"\nnote: recorded lattices are left out: {error}")
            return
        row = self.compare("recorded", recording.lm, recording.lattices, 16, True)
        grams = f"{sum(recording.lm.num_ngrams):,}"
        print_comparison(f"head logits recorded from {directory.name} ({grams} n-grams)", [row])
        self.results["recorded"] = row
        self.summary["ratio_8x16_p16_recorded"] = row["ratio"]

    def measure_pywrapfst(self) -> None:
        """Composition from Python, with epsilon backoff; see pywrapfst_peer.py."""
        try:
            measured = measure_pywrapfst(self.main.take(0, 20), self.lm, 16)
        except ImportError as error:
            print(f"\nnote: pywrapfst is left out: {error}")
            return
        print(
            f"\npywrapfst, 8 x 16, 16 paths: {measured.times.median / 1000:.2f} ms, 90 % "
            f"{measured.times.p90 / 1000:.2f}; its epsilon backoff has the right best path in "
            f"{measured.same_best:.0%} of {measured.times.samples} lattices"
        )
        self.results["pywrapfst"] = {**measured.times.to_json(), "same_best": measured.same_best}
        self.summary["pywrapfst_ratio_8x16_p16"] = round(
            measured.times.median / self.summary["fused_us_8x16_p16"], 1
        )

    def measure_batches(self) -> None:
        """64 and 256 lattices in one call, on one thread and on two; 16 threads simulated."""
        for size in SIZES:
            if size > self.count:
                continue  # --quick
            times = time_batches(self.lm, self.main, size, 40 * self.rounds)
            rows = [[n, times[n].median, times[n].p90] for n in times]
            print_table(f"batch of {size}, us a lattice", ["threads", "median", "90 %"], rows)
            self.results[f"batch{size}"] = {str(n): times[n].to_json() for n in times}
            self.summary[f"batch{size}_2threads"] = round(times[1].median / times[2].median, 2)
        if self.args.quick:
            return
        try:
            simulated = simulate_threads(self.lm, CACHE / "corpus.lm", self.main, self.rounds)
        except MissingValgrindError as error:
            print(f"\nnote: 16 threads are left out: {error}")
            return
        print(f"\n{SIMULATED} threads, simulated: {simulated}")
        self.results[f"simulated_{SIMULATED}threads"] = simulated

    def measure_trees(self) -> None:
        """Trees of the sizes that decoding verifies."""
        parts = self.main.split(PART)
        sizes = (18, 36, 144)
        measured = time_in_turns(
            [
                Contender(
                    lambda arguments: _core.find_trees(*arguments),
                    [tree_arguments(part, self.lm, size) for part in parts],
                )
                for size in sizes
            ],
            items_per_call=PART,
            rounds=self.rounds,
        )
        rows = [[n, times.median, times.p90] for n, times in zip(sizes, measured, strict=True)]
        print_table("trees, 8 x 16, us", ["nodes", "median", "90 %"], rows)
        named = zip(sizes, measured, strict=True)
        self.results["trees"] = {str(n): times.to_json() for n, times in named}
        self.summary["tree_us_36_nodes"] = round(measured[1].median, 2)

    def measure_python(self) -> None:
        """rescore_lattice on ready lattices, and on logits of 8 x 50,257."""
        lattices = [
            (SausageLattice(zip(ids, scores, strict=True)), context)
            for ids, scores, context in zip(*self.main, strict=True)
        ]
        core = time_fused([self.lm], self.main, 16, self.rounds)[0]
        logits = [(self._logits(n), self.main.contexts[n]) for n in range(40)]
        for item in logits:
            np.testing.assert_array_equal(
                rescore_lattice(*item, self.lm, engine="openfst", alpha=1.0).token_ids,
                rescore_lattice(*item, self.lm, alpha=1.0).token_ids,
            )
        ready, whole, top_k = time_in_turns(
            [
                Contender(lambda item: rescore_lattice(*item, self.lm, alpha=1.0), lattices),
                Contender(lambda item: rescore_lattice(*item, self.lm, alpha=1.0), logits),
                Contender(self._select, [item[0] for item in logits]),
            ],
            rounds=self.rounds,
        )
        named = {"core": core, "candidates": ready, "logits": whole, "top_k_of_logits": top_k}
        rows = [[name, times.median, times.p90] for name, times in named.items()]
        print_table("from Python, 8 x 16, p = 16, us", ["call", "median", "90 %"], rows)
        self.results["python"] = {name: times.to_json() for name, times in named.items()}
        self.summary["python_overhead_us"] = round(ready.median - core.median, 2)
        self.summary["whole_call_us"] = round(whole.median, 2)

    def measure_top_k(self) -> None:
        """Selection alone, against torch.topk."""
        try:
            rows = measure_top_k(3 * self.rounds)
        except ImportError as error:
            print(f"\nnote: torch.topk is left out: {error}")
            return
        print_table(
            "top-k of 8 rows, one thread, us",
            ["type", "vocabulary", "k", "ours", "90 %", "torch.topk", "90 %", "ratio"],
            [
                [r["type"], r["vocab_size"], r["top_k"], r["ours"]["median_us"],
                 r["ours"]["p90_us"], r["torch"]["median_us"], r["torch"]["p90_us"], r["ratio"]]
                for r in rows
            ],
        )  # fmt: skip
        self.results["top_k"] = rows
        for kind in ("float32", "bfloat16"):
            ratios = [r["ratio"] for r in rows if r["type"] == kind and r["top_k"] == 16]
            self.summary[f"top_k_{kind}_ratio"] = min(ratios)

    def measure_large_vocabulary(self) -> None:
        """The same text and lattices with ids above 65,535, for which LMs have 4-byte keys."""
        text, lattices = multiply_ids(self.corpus), self.main.multiply_ids()
        lm = make_lm("large-vocabulary.lm", text, LARGE_VOCAB_SIZE)
        check_engines_agree(lattices.take(0, 50), lm, 16)
        token_ids, scores, _ = rescore(self.main, self.lm, 16, "fused")
        large_ids, large_scores, _ = rescore(lattices, lm, 16, "fused")
        np.testing.assert_array_equal(large_ids, ID_FACTOR * token_ids)
        np.testing.assert_array_equal(large_scores, scores)
        calls = [
            engine_contender(model, 16, "fused", some.split(PART))
            for model, some in ((self.lm, self.main), (lm, lattices))
        ]
        small, large = time_in_turns(calls, items_per_call=PART, rounds=self.rounds)
        rows = [
            [f"{size:,}", times.median, times.p90]
            for size, times in ((VOCAB_SIZE, small), (LARGE_VOCAB_SIZE, large))
        ]
        print_table("size of the vocabulary, 8 x 16, p = 16", ["tokens", "us", "90 %"], rows)
        ratio = round(large.median / small.median, 2)
        self.results["large_vocabulary"] = {
            "text": text.name,
            "vocab_size": LARGE_VOCAB_SIZE,
            "bytes_per_ngram": bytes_per_ngram(lm, "large-vocabulary.lm"),
            "small": small.to_json(),
            "large": large.to_json(),
            "ratio": ratio,
        }
        self.summary["fused_us_8x16_p16_large_vocabulary"] = round(large.median, 2)
        self.summary["large_vocabulary_ratio"] = ratio

    def measure_scale(self) -> None:
        """The same lattices on LMs ten times as large."""
        self.summary["scale_10x"] = None
        if self.args.quick or self.args.no_scale:
            print("\nnote: the large LM is left out")
            return
        row = self._compare_with_large(make_large_text(self.corpus, COPIES))
        self.results["scale"] = row
        self.summary["scale_10x"] = row["ratio"]
        if self.args.dense:
            dense = self._compare_with_large(make_dense_text(self.corpus, DENSE_TEXT))
            self.results["scale_dense"] = dense

    def _compare_with_large(self, text: Corpus) -> dict[str, Any]:
        """Times of the search on the corpus' LM and on the text's."""
        large = make_lm("large.lm", text)
        check_scores(self.main.take(0, 20), large, 16)
        if self.args.check_scale:
            check_engines_agree(self.main.take(0, 20), large, 16)
        times = time_fused([self.lm, large], self.main, 16, self.rounds)
        grams = [sum(lm.num_ngrams) / 1e6 for lm in (self.lm, large)]
        rows = [[n, timed.median, timed.p90] for n, timed in zip(grams, times, strict=True)]
        print_table(f"size of the LM ({text.name})", ["million n-grams", "us", "90 %"], rows)
        return {
            "text": text.name,
            "num_ngrams": large.num_ngrams,
            "bytes_per_ngram": bytes_per_ngram(large, "large.lm"),
            "optimum_compared_with_openfst": bool(self.args.check_scale),
            "small": times[0].to_json(),
            "large": times[1].to_json(),
            "ratio": round(times[1].median / times[0].median, 2),
        }

    def compare(
        self, name: str, lm: NGramLM, lattices: Lattices, num_drafts: int, full: bool
    ) -> dict[str, Any]:
        """Both engines; `full`: all lattices through the slow one too, else some of them."""
        some = lattices if full else lattices.take(0, 50)
        rounds = self.rounds if full else 5
        return compare_engines(name, lm, lattices, some, num_drafts, rounds)

    def _select(self, logits: Any) -> object:
        return select_top_k(logits, 16, log_softmax=False, where="bench", threads=1)

    def _logits(self, n: int) -> Any:
        """(8, V) float32 whose best tokens are lattice n."""
        rng = np.random.default_rng(n)
        logits = rng.standard_normal((8, VOCAB_SIZE)).astype(np.float32) - 30
        np.put_along_axis(logits, self.main.token_ids[n], self.main.scores[n], axis=1)
        return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer lattices, no large LM")
    parser.add_argument("--no-scale", action="store_true", help="no large LM")
    parser.add_argument(
        "--check-scale", action="store_true", help="openfst on the large LM too (5 GiB, a minute)"
    )
    parser.add_argument("--dense", action="store_true", help="a large LM of denser text too")
    parser.add_argument(
        "--instructions", action="store_true", help="compare instruction counts with the baseline"
    )
    parser.add_argument("--renew", action="store_true", help="replace that baseline")
    parser.add_argument("--cache-lines", action="store_true", help="count the lines of a search")
    parser.add_argument("--demo", type=Path, metavar="DIR", help="a model of `make demo`")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results" / "rescore.json"
    )
    args = parser.parse_args()
    if args.instructions or args.renew:
        compare_instructions(args.renew)
        return
    if args.cache_lines:
        count_cache_lines()
        return
    bench = Bench(args)
    bench.measure_engines()
    bench.measure_large_vocabulary()
    bench.measure_alternating()
    bench.measure_recorded()
    bench.measure_pywrapfst()
    bench.measure_batches()
    bench.measure_trees()
    bench.measure_python()
    bench.measure_top_k()
    bench.measure_scale()
    write_json(args.out, bench.results)
    print_table("summary", ["figure", "value"], list(bench.summary.items()))
    print(f"\n{args.out.name}: written")
    compare_instructions(renew=False)


def count_cache_lines() -> None:
    """Of the lattices that are timed."""
    corpus = load_corpus()
    make_lm("corpus.lm", corpus)
    try:
        measure_cache_lines(CACHE / "corpus.lm", draw_lattices(corpus, 21, 8, 16))
    except MissingValgrindError as error:
        sys.exit(f"cache lines are not counted: {error}")


def compare_instructions(renew: bool) -> None:
    """Ends the program with status 1 where there are too many."""
    try:
        complaints = check_instructions(renew)
    except MissingValgrindError as error:
        print(f"note: instructions are not counted: {error}")
        if renew:
            sys.exit(1)
        return
    if complaints:
        sys.exit("\n".join(["bench_rescore: the counts of instructions changed", *complaints]))


if __name__ == "__main__":
    main()
