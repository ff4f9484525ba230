"""benchmarks/cache_lines.py: reading valgrind's log, naming lines, the simulated cache."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cache_lines():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield importlib.import_module("cache_lines")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def test_searches_are_what_lies_between_markers(cache_lines):
    marker = f"{cache_lines.MARKER:x}".encode()
    log = [
        b"==1== Lackey, an example Valgrind tool\n",
        b" L 1000,8\n",
        b" S " + marker + b",4\n",
        b"I  04001000,3\n",
        b" L 1040,8\n",
        b" S 107c,8\n",  # ends in the next line
        b" M 1040,1\n",
        b" S " + marker + b",4\n",
        b" L 2000,8\n",
        b" S " + marker + b",4\n",
        b" S " + marker + b",4\n",
    ]
    assert list(cache_lines.read_searches(log)) == [[0x41, 0x41, 0x42, 0x41], []]


def test_lines_are_named_by_the_array_that_they_hold(cache_lines):
    regions = cache_lines.parse_regions("2-grams: keys\t4096\t4200\n1-grams: records\t1000\t2000\n")
    names = [cache_lines.name_line(line, regions) for line in (14, 15, 31, 32, 63, 64, 65, 66)]
    records, keys, rest = "1-grams: records", "2-grams: keys", cache_lines.WORKSPACE
    assert names == [rest, records, records, rest, rest, keys, keys, rest]


def test_the_least_recently_used_line_is_replaced(cache_lines):
    cache = cache_lines.CacheSimulator(2)
    assert cache.misses([1, 2, 1, 3, 1, 2]) == [1, 2, 3, 2]
    assert cache.misses([2, 1]) == []


def test_traffic_counts_lines_pages_and_misses_by_name(cache_lines):
    regions = cache_lines.parse_regions("2-grams: keys\t0\t12288\n")
    total = cache_lines.Traffic(Counter(), Counter(), Counter())
    cache_lines.add_traffic(total, [0, 1, 1, 64, 1000], [0, 64], regions)
    assert total.lines == {"2-grams: keys": 3, cache_lines.WORKSPACE: 1}
    assert total.pages == {"2-grams: keys": 2, cache_lines.WORKSPACE: 1}
    assert total.misses == {"2-grams: keys": 2}


def test_lattices_are_written_as_the_program_reads_them(cache_lines, tmp_path):
    lattices = importlib.import_module("lattices").Lattices(
        np.arange(6, dtype=np.int32).reshape(1, 2, 3),
        np.ones((1, 2, 3), np.float32),
        np.array([[7, 8]], np.int32),
    )
    cache_lines.write_lattices(tmp_path / "lattices", lattices)
    written = np.fromfile(tmp_path / "lattices", np.int32)
    np.testing.assert_array_equal(written[:10], [1, 2, 3, 2, 0, 1, 2, 3, 4, 5])
    np.testing.assert_array_equal(written[10:16].view(np.float32), np.ones(6))
    np.testing.assert_array_equal(written[16:], [7, 8])
