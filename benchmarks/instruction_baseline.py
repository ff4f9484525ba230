"""Compares the instructions of searches with a committed baseline, so that a slow-down shows.

    make bench-rescore ARGS=--instructions              compares (a minute); exit status 1: too many
    make bench-rescore ARGS="--instructions --renew"    replaces the baseline

Counts need no quiet machine, and no certain processor: under valgrind, which does not know AVX-512,
each that has AVX2 runs the same code. They say nothing about cache misses. The corpus is synthetic,
so that every machine has it. The baseline names what else decides the counts: compiler, C library
and instruction sets. With others nothing is judged, which is said; to measure a change there,
renew the baseline with the code before it. CI judges where it can (.ci/run).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from corpus import CACHE, LARGE_VOCAB_SIZE, ROOT, make_zipf_text, multiply_ids
from engines import make_lm
from lattices import Lattices, draw_lattices
from report import print_table, write_json
from valgrind_counts import (
    SEARCHES,
    count_instructions,
    large_vocabulary_path,
)

BASELINE = ROOT / "benchmarks" / "results" / "instructions.json"
TOLERANCE = 0.02
RENEW = 'make bench-rescore ARGS="--instructions --renew"'


class Comparison(NamedTuple):
    """One search.

    Attributes:
        name: of the search.
        count: instructions for a lattice now.
        baseline: in the baseline; None: it has none of that name.
    """

    name: str
    count: int
    baseline: int | None

    @property
    def change(self) -> float | None:
        """Relative to the baseline."""
        return None if self.baseline is None else self.count / self.baseline - 1

    @property
    def complaint(self) -> str | None:
        """What is wrong, or None."""
        if self.baseline is None or self.change is None:
            return f"{self.name}: {BASELINE.name} has no such search; renew it: {RENEW}"
        if abs(self.change) <= TOLERANCE:
            return None
        text = (
            f"{self.name}: {self.count:,} instructions for a lattice, {self.change:+.1%} against "
            f"{self.baseline:,} in {BASELINE.name} (tolerance {TOLERANCE:.0%}); "
        )
        if self.change > 0:
            return text + f"find out why, or, if that is wanted, renew the baseline: {RENEW}"
        return text + f"renew the baseline, so that it guards the better count: {RENEW}"


def compare_counts(counts: dict[str, int], baseline: dict[str, int]) -> list[Comparison]:
    """Each count beside that of the baseline."""
    return [Comparison(name, count, baseline.get(name)) for name, count in counts.items()]


def read_baseline(path: Path | None = None) -> dict[str, int]:
    """Instructions by the searches' names; none where there is no file."""
    path = path or BASELINE
    if not path.is_file():
        return {}
    counts: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))["instructions"]
    return counts


def find_difference(build: dict[str, str], path: Path | None = None) -> str | None:
    """What this build and that of the baseline differ in; None: nothing, counts can be compared."""
    path = path or BASELINE
    known = json.loads(path.read_text(encoding="utf-8")).get("build", {}) if path.is_file() else {}
    different = [
        f"{name} {build[name]!r}, the baseline {known.get(name)!r}"
        for name in build
        if build[name] != known.get(name)
    ]
    return "; ".join(different) or None


def check_instructions(renew: bool) -> list[str]:
    """Count, print the comparison, and replace the baseline if wanted.

    Counts of another build than the baseline's are printed, not judged.

    Returns:
        What is wrong, in words; nothing after renewing.

    Raises:
        MissingValgrindError: it cannot be counted.
    """
    corpus = make_zipf_text(1_000_000)
    path = CACHE / "zipf.lm"
    make_lm(path.name, corpus)
    make_lm(large_vocabulary_path(path).name, multiply_ids(corpus), LARGE_VOCAB_SIZE)
    lattices: dict[str, Lattices] = {
        s.name: draw_lattices(corpus, 120, s.slots, s.top_k) for s in SEARCHES
    }
    for search in SEARCHES:
        if search.large_vocabulary:
            lattices[search.name] = lattices[search.name].multiply_ids()
    counts, build = count_instructions(path, lattices)
    compared = compare_counts(counts, read_baseline())
    rows = [
        [c.name, f"{c.count:,}", c.baseline and f"{c.baseline:,}",
         None if c.change is None else f"{c.change:+.2%}"]
        for c in compared
    ]  # fmt: skip
    print_table("instructions for a lattice", ["search", "now", "baseline", "change"], rows)
    if renew:
        write_json(BASELINE, {"corpus": corpus.name, "build": build, "instructions": counts})
        print(f"\n{BASELINE.name}: written; commit it")
        return []
    difference = find_difference(build)
    if difference is not None:
        print(
            f"\nnote: these counts are not judged: this machine has {difference}; to judge: {RENEW}"
        )
        return []
    return [c.complaint for c in compared if c.complaint is not None]
