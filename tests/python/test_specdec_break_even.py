"""examples/specdec_break_even.py times both kinds of calls and prints their ratio."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sacrebleu")
pytest.importorskip("tokenizers")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_break_even_is_the_ratio_of_the_times_per_call(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import specdec_break_even

    class Stats:
        def __init__(self, seconds, target_calls):
            self.stats = self
            self.seconds, self.target_calls = seconds, target_calls

    def generate(target, source, drafter, *, heads, max_new_tokens):
        assert (heads is None) == (drafter == "greedy")
        if drafter == "greedy":
            return Stats({"prompt": 9.0, "target": 0.4}, 5)  # 100 ms a call
        return Stats({"prompt": 9.0, "heads": 0.2, "target": 0.3}, 3)  # 250 ms a call

    options = ["--sizes", "16", "--decoder-layers", "1", "--repeats", "1", "--tokens", "4"]
    file = tmp_path / "rows.json"
    specdec_break_even.main(options)  # with the real calls
    monkeypatch.setattr(specdec_break_even, "generate", generate)
    (row,) = specdec_break_even.main([*options, "--json", str(file)])
    assert row["greedy_ms"] == pytest.approx(100)
    assert row["specdec_ms"] == pytest.approx(250)
    assert row["break_even"] == pytest.approx(2.5)
    assert json.loads(file.read_text())["rows"] == [row]
    assert "2.50" in capsys.readouterr().out
