"""Cache lines that a search accesses, by what they hold, and its misses in a simulated cache.

    python benchmarks/bench_rescore.py --cache-lines      20 lattices of 8 x 16, half a minute

valgrind traces the searches of search_trace.cc, which is built first. It knows no AVX-512 and
traces no prefetches, so these are the lines that the AVX2 code reads or writes, prefetched or not.
The cache is fully associative, replaces the least recently used line, and keeps what it has from
lattice to lattice; with empty caches each line is missed once.
"""

from __future__ import annotations

import shutil
import subprocess
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from corpus import CACHE, ROOT
from lattices import Lattices
from report import print_table
from valgrind_counts import MissingValgrindError

BUILD = ROOT / "build" / "dev"
MARKER = 1 << 33  # kMarker in search_trace.cc
LINE, PAGE = 64, 4096
CACHE_KIB = 1024  # a second-level cache
WORKSPACE = "workspace, lattice, drafts"  # all that is not the LM's


class Region(NamedTuple):
    """An array of the LM.

    Attributes:
        begin: Its address.
        end: The address after its last byte.
        name: Of what it holds.
    """

    begin: int
    end: int
    name: str


class Traffic(NamedTuple):
    """Of some lattices together, by name of what the lines hold.

    Attributes:
        lines: Different lines that a lattice accesses.
        pages: The pages of 4 KiB that these lie in.
        misses: Lines that the simulated cache did not have.
    """

    lines: Counter[str]
    pages: Counter[str]
    misses: Counter[str]


def parse_regions(text: str) -> list[Region]:
    """What search_trace prints, by address."""
    rows = (line.split("\t") for line in text.splitlines())
    return sorted(Region(int(begin), int(end), name) for name, begin, end in rows)


def name_line(line: int, regions: list[Region]) -> str:
    """What a cache line holds: the last array that begins in it or before it."""
    at = bisect_right(regions, line * LINE + LINE - 1, key=lambda region: region.begin) - 1
    return regions[at].name if at >= 0 and line * LINE < regions[at].end else WORKSPACE


def read_searches(log: Iterable[bytes]) -> Iterator[list[int]]:
    """The lines that each search accesses, in order, out of valgrind's log."""
    lines: list[int] = []
    in_search = False
    for entry in log:
        if entry[:2] not in (b" L", b" S", b" M"):  # loads, stores, both; "I": instructions
            continue
        address, _, size = entry[3:].partition(b",")
        first = int(address, 16)
        if first == MARKER:
            if in_search:
                yield lines
            lines = []
            in_search = not in_search
        elif in_search:
            lines.extend(range(first // LINE, (first + int(size) - 1) // LINE + 1))


class CacheSimulator:
    """A fully associative cache of `capacity` lines."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._lines: dict[int, None] = {}  # least recently used first

    def misses(self, accessed: Iterable[int]) -> list[int]:
        """The lines that it does not have when they are accessed; then it has them."""
        missed = []
        for line in accessed:
            if line in self._lines:
                del self._lines[line]
            else:
                missed.append(line)
                if len(self._lines) == self.capacity:
                    del self._lines[next(iter(self._lines))]
            self._lines[line] = None
        return missed


def add_traffic(
    total: Traffic, accessed: list[int], missed: list[int], regions: list[Region]
) -> None:
    """Adds one lattice's."""
    names = {line: name_line(line, regions) for line in set(accessed)}
    total.lines.update(names.values())
    total.misses.update(names[line] for line in missed)
    pages = {(line * LINE // PAGE, name) for line, name in names.items()}
    total.pages.update(name for _, name in pages)


def print_traffic(total: Traffic, num_lattices: int) -> None:
    """Means of a lattice, most lines first."""
    rows: list[list[Any]] = [
        [name, *(round(counts[name] / num_lattices) for counts in total)]
        for name, _ in total.lines.most_common()
    ]
    rows.append(["all", *(round(counts.total() / num_lattices) for counts in total)])
    misses = f"misses, {CACHE_KIB} KiB"
    print_table("one lattice", ["accessed", "lines", "4-KiB pages", misses], rows)


def measure_cache_lines(lm_path: Path, lattices: Lattices) -> Traffic:
    """Searches each lattice for its 16 best drafts and prints what it accesses.

    The first one, which finds the cache empty, does not count.

    Raises:
        MissingValgrindError: There is no valgrind.
        RuntimeError: The traced program failed.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise MissingValgrindError("found no valgrind; apt-get install valgrind")
    build = ["cmake", "--build", str(BUILD), "--target", "search_trace", "--", "--quiet"]
    subprocess.run(build, check=True)
    lattices_path, regions_path = CACHE / "search-trace.bin", CACHE / "search-trace.txt"
    write_lattices(lattices_path, lattices)
    command = [valgrind, "--tool=lackey", "--trace-mem=yes", str(BUILD / "search_trace")]
    command += [str(lm_path), str(lattices_path)]
    total = Traffic(Counter(), Counter(), Counter())
    cache = CacheSimulator(CACHE_KIB * 1024 // LINE)
    with (
        regions_path.open("w") as printed,
        subprocess.Popen(command, stdout=printed, stderr=subprocess.PIPE) as process,
    ):
        assert process.stderr is not None
        for n, accessed in enumerate(read_searches(process.stderr)):
            missed = cache.misses(accessed)
            if n > 0:
                add_traffic(total, accessed, missed, parse_regions(regions_path.read_text()))
    if process.returncode != 0:
        raise RuntimeError(f"cache_lines: search_trace ended with status {process.returncode}")
    print_traffic(total, len(lattices.token_ids) - 1)
    return total


def write_lattices(path: Path, lattices: Lattices) -> None:
    """As search_trace reads them."""
    sizes = np.array([*lattices.token_ids.shape, lattices.contexts.shape[1]], np.int32)
    with path.open("wb") as file:
        for array in (sizes, *lattices):
            file.write(array.tobytes())
