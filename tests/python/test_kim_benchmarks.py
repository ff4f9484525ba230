"""The benchmarks of the paper's training choices and of entropies as a halting condition."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import numpy as np

from blockwise_models import looping_text, model_of, plain_greedy
from lattice_bpd.evaluate import record

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def load(monkeypatch, name):
    """A module of benchmarks/."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for module in (name, "machine", "report"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return __import__(name)


@functools.cache
def recorded():
    text, model = looping_text(600, seed=5).tolist(), model_of("trained")
    prompts = [text[start : start + 9] for start in range(0, 200, 23)]
    return record(model, prompts, [plain_greedy(model, p, 20) for p in prompts], top_k=8)


def test_where_rules_stop_a_training(monkeypatch):
    halting = load(monkeypatch, "bench_entropy_halting")
    # h_max rises until row 2 and has not risen for three rows at row 5; it reaches h at row 6.
    h_maxes = [1, 2, 5, 4, 5, 3, 9, 9]
    losses = [5.0, 4.0, 3.0, 2.5, 2.4, 2.6, 2.5, 2.5]  # best at row 4, three later is row 7
    rows = [
        {"step": 100 * n, "h_max": h, "validation_loss": loss}
        for n, (h, loss) in enumerate(zip(h_maxes, losses, strict=True))
    ]
    found = {rule: row and row["step"] for rule, row in halting.halting_steps(rows, 9).items()}
    assert list(found.values()) == [600, 500, 700]
    none = halting.halting_steps(rows[:3], 9)
    assert list(none.values()) == [None] * 3


def test_drafts_end_where_a_rule_says(monkeypatch):
    halting = load(monkeypatch, "bench_entropy_halting")
    known = recorded()
    slots = known.slots.copy()
    rows = {row["rule"]: row for row in halting.compare_drafting(known)}
    assert np.array_equal(known.slots, slots)  # cut copies only
    whole = rows[f"fixed: {known.num_slots} tokens"]
    assert whole["block_efficiency"] == halting.replay(known).block_efficiency
    by_heads = known.with_slots(2)  # a fixed length of 2 is decoding with two draft heads
    assert rows["fixed: 2 tokens"]["block_efficiency"] == halting.replay(by_heads).block_efficiency
    # By hand: walk each text; a draft keeps its slots before the first whose entropy falls.
    for name, first in {"head": 0, "draft head": 1}.items():
        calls = drafted = 0
        for text in known.texts:
            at, end = 0, len(text.output)
            calls += 1
            while at < end - 1:
                entropies, kept = text.entropies[at], first
                while kept < known.num_slots and entropies[kept] <= entropies[kept + 1]:
                    kept += 1
                kept = min(kept, text.usable_slots()[at])
                drafts = text.token_ids[at, :kept, 0].tolist()
                wanted = text.output[at + 1 :].tolist()
                right = next((n for n, d in enumerate(drafts) if d != wanted[n]), len(drafts))
                calls, drafted, at = calls + 1, drafted + kept, at + right + 1
        tokens = sum(len(text.output) for text in known.texts)
        rule = rows[f"first {name} of lower entropy"]
        assert rule["block_efficiency"] == pytest.approx(tokens / calls)
        assert rule["draft_tokens_per_call"] == pytest.approx(drafted / (calls - len(known.texts)))


@pytest.mark.parametrize("name", ["bench_entropy_halting", "bench_kim_training"])
def test_the_benchmark_runs(name, monkeypatch, capsys):
    module = load(monkeypatch, name)
    more = [] if name == "bench_entropy_halting" else ["--only", "first_head"]
    module.main(["--quick", *more])
    printed = capsys.readouterr().out
    assert "tokens per call" in printed
    expected = "h_max = h" if name == "bench_entropy_halting" else "ours, network on head 1"
    assert expected in printed
