"""benchmarks/instruction_baseline.py: what it says of counts that differ from the baseline."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def guard():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield importlib.import_module("instruction_baseline")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def test_a_slower_search_is_reported(guard):
    compared = guard.compare_counts({"list": 1050, "tree": 1019}, {"list": 1000, "tree": 1000})
    slower, within = (one.complaint for one in compared)
    assert within is None
    assert slower.startswith("list: 1,050 instructions for a lattice, +5.0% against 1,000")
    assert "tolerance 2%" in slower
    assert "--renew" in slower


def test_a_faster_search_renews_the_baseline(guard):
    (one,) = guard.compare_counts({"list": 900}, {"list": 1000})
    assert "-10.0% against 1,000" in one.complaint
    assert "guards the better count" in one.complaint


def test_a_search_without_baseline_is_reported(guard):
    (one,) = guard.compare_counts({"list": 900}, {})
    assert "has no such search" in one.complaint


def test_the_committed_baseline_has_every_search(guard):
    baseline = guard.read_baseline()
    assert set(baseline) == {search.name for search in guard.SEARCHES}
    assert all(count > 1000 for count in baseline.values())


def test_a_run_against_a_slower_baseline_fails(guard, tmp_path, monkeypatch, capsys):
    """The whole check, with counts from elsewhere."""
    counts = {search.name: 100_000 for search in guard.SEARCHES}
    path = tmp_path / "instructions.json"
    path.write_text(json.dumps({"instructions": dict.fromkeys(counts, 90_000)}))
    monkeypatch.setattr(guard, "BASELINE", path)
    monkeypatch.setattr(guard, "count_instructions", lambda *_: counts)
    monkeypatch.setattr(guard, "make_lm", lambda *_: None)
    monkeypatch.setattr(guard, "make_zipf_text", lambda _: guard_corpus())
    monkeypatch.setattr(guard, "multiply_ids", lambda corpus: corpus)
    monkeypatch.setattr(guard, "draw_lattices", lambda *_: guard.Lattices(*np.zeros((3, 1, 1, 1))))
    complaints = guard.check_instructions(renew=False)
    assert len(complaints) == len(counts)
    assert guard.check_instructions(renew=True) == []
    assert guard.read_baseline(path) == counts
    assert guard.check_instructions(renew=False) == []
    assert "commit it" in capsys.readouterr().out


def guard_corpus():
    """Only its name is used."""
    return type("Corpus", (), {"name": "none"})
