"""specdec_break_even.py times both kinds of calls and prints their ratio."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sacrebleu")
pytest.importorskip("tokenizers")

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def test_break_even_and_speed_are_those_of_the_times_per_call(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import specdec_break_even

    class Stats:
        def __init__(self, seconds, target_calls):
            self.stats = self
            self.seconds, self.target_calls = seconds, target_calls

    encoders = []

    def generate(target, source, drafter, *, heads, max_new_tokens):
        encoders.append(len(target.base.get_encoder().layers))
        assert (heads is None) == (drafter == "greedy")
        if drafter == "greedy":  # 100 ms per call; "total" has all stages
            return Stats({"prompt": 0.2, "target": 0.3, "verify": 0.1, "total": 0.6}, 5)
        return Stats({"prompt": 0.2, "heads": 0.2, "target": 0.25, "total": 0.7}, 3)  # 250 ms

    options = ["--sizes", "16", "--decoder-layers", "1", "--repeats", "1", "--tokens", "4"]
    file = tmp_path / "rows.json"
    specdec_break_even.main(options)  # with the real calls
    monkeypatch.setattr(specdec_break_even, "generate", generate)
    capsys.readouterr()
    options += ["--block-efficiency", "2", "--encoder-layers", "4", "--json", str(file)]
    (row,) = specdec_break_even.main(options)
    assert set(encoders) == {4}
    assert row["source_ms"] == pytest.approx(200)
    assert row["greedy_ms"] == pytest.approx(100)
    assert row["specdec_ms"] == pytest.approx(250)
    # 4 tokens: greedy decoding takes 200 + 3 * 100 ms, and SpecDec as much in 1.2 blocks, which
    # with the first call are 2.2 calls; at 2 tokens per call it takes 200 + 1 * 250 ms.
    assert row["break_even"] == pytest.approx(4 / 2.2)
    assert row["speed"] == pytest.approx(500 / 450)
    at_break_even = specdec_break_even.predict(row, 4, row["break_even"])
    assert at_break_even["speed"] == pytest.approx(1)
    assert json.loads(file.read_text())["rows"] == [row]
    assert "1.82" in capsys.readouterr().out
