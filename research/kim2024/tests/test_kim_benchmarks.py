"""The benchmarks of the paper's training choices."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")


BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


def load(monkeypatch, name):
    """A module of benchmarks/."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for module in (name, "machine", "report"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return __import__(name)


def test_the_benchmark_runs(monkeypatch, capsys):
    load(monkeypatch, "bench_kim_training").main(["--quick", "--only", "first_head"])
    printed = capsys.readouterr().out
    assert "tokens per call" in printed
    assert "ours, network on head 1" in printed
