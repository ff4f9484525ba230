"""scripts/results_tables.py: what `make results` writes into RESULTS.md, and where."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

tables = importlib.import_module("results_tables")


def line(name: str, value: float, loop_free: float | None = None) -> dict:
    """A strategy whose block efficiency is `value`, where BPD's is 2."""
    groups = [] if loop_free is None else [{"high": 0.0, "gain": loop_free, "texts": 3}]
    gain = {"value": value / 2 - 1, "low": value / 2 - 1.1, "high": value / 2 - 0.9}
    return {
        "name": name, "label": f"<{name}>", "block_efficiency": value,
        "interval": {"value": value, "low": value - 0.1, "high": value + 0.1},
        "over_bpd": {"gain": gain}, "by_loop_share": groups,
    }  # fmt: skip


@pytest.fixture
def tasks() -> dict:
    lines = [
        line("bpd", 2.0), line("ngram_1best", 1.9), line("p_best_0gram", 2.2),
        line("p_best_ngram", 2.6, 0.25), line("tree_0gram", 2.5), line("tree", 2.8),
        line("oracle", 3.0),
    ]  # fmt: skip
    task = {"strategies": lines, "texts": 10, "texts_held_out": 5, "loop_share": 0.125}
    return {"xsum": task, "mine": task}


def test_report_results_lines_say_what_was_measured(tasks):
    strategies = "\n".join(tables.describe_strategies(tasks))
    assert "| <tree> | 2.80 (2.70-2.90) | 2.80 (2.70-2.90) |" in strategies
    assert (
        "on: 10 per task; held out for tuning: 5 per task. Output in loops: xsum 12%" in strategies
    )
    other = {**tasks["mine"], "texts": 4}
    strategies = "\n".join(tables.describe_strategies({**tasks, "mine": other}))
    assert "Texts reported on: xsum 10, mine 4; held out for tuning: 5 per task." in strategies
    gains = tables.describe_gains(tasks)
    paper = "| +2.7% | +10.0% | +4.4% | +30.0% (+20.0% to +40.0%) | +11.5% |"
    assert gains[2] == f"| xsum | -5.0% {paper} +25.0% (3 texts) | 80% |"
    assert gains[3].startswith("| mine | -5.0% |  | +10.0% |  |")
    for task in tasks.values():
        task["strategies"].append(line("neural", 2.1))
    neural = tables.describe_gains(tasks)
    assert neural[0].startswith("| gain over BPD | neural, 1-best | paper | 4-gram, 1-best |")
    assert neural[2].startswith("| xsum | +5.0% | +8.8% | -5.0% | +2.7% |")


def test_report_results_have_the_targets_perplexity(tasks):
    assert tables.describe_perplexity(tasks) == []
    measured = {"metric": "perplexity", "value": 12.345, "texts": 40}
    tasks = {
        "lambada": {"performance": measured}, "mine": {"performance": None},
        "squad": {"performance": {**measured, "metric": "exact_match"}},
        "other": {"performance": measured},
    }  # fmt: skip
    assert tables.describe_perplexity(tasks)[-1] == (
        "Perplexity of the target, per token: lambada 12.35 (40 texts; the paper's target: 7.88), "
        "other 12.35 (40 texts)."
    )


def test_report_results_name_what_does_not_help(tasks):
    lines = tables.describe_losses(tasks)
    assert lines[2:] == ["- xsum: <ngram_1best> relative to <bpd>: -5.0%",
                         "- mine: <ngram_1best> relative to <bpd>: -5.0%"]  # fmt: skip
    for task in tasks.values():
        task["strategies"][1] = line("ngram_1best", 2.5)
    assert len(tables.describe_losses(tasks)) == 1


def test_report_results_of_acceptance_rules():
    def rule(name: str, calls: int, relaxed: int, same: int) -> dict:
        return {
            "rule": name, "lossless": name == "exact", "texts": 5, "tokens": 100,
            "target_calls": calls, "block_efficiency": 100 / calls, "relaxed_tokens": relaxed,
            "regret": relaxed / 2, "regret_per_token": relaxed / 200, "nats_per_token": 0.7,
            "same_texts": same, "quality": 12.5 if name == "exact" else None,
        }  # fmt: skip

    lines = tables.describe_rules(
        {"a": {"acceptance": [rule("exact", 50, 0, 5), rule("top_k:2", 25, 10, 1)]},
         "b": {"acceptance": [rule("exact", 30, 0, 5), rule("top_k:2", 25, 20, 0)]}}
    )  # fmt: skip
    assert lines[2:4] == [
        "| `exact` | lossless | 2.50 | 1.00 | 0.0% | 0.000 | 0.700 | 10 of 10 |",
        "| `top_k:2` | lossy | 4.00 | 1.60 | 15.0% | 0.075 | 0.700 | 1 of 10 |",
    ]
    assert lines[5].endswith("in brackets. Texts: 5 per task.")
    assert lines[-2] == "| `exact` | 2.00 (0.000; 12.5) | 3.33 (0.000; 12.5) |"
    assert lines[-1] == "| `top_k:2` | 4.00 (0.050) | 4.00 (0.100) |"


def test_report_results_replace_their_section_only():
    text = "before\n<!-- a -->\nold\n<!-- /a -->\nafter <!-- b -->"
    assert tables.replace_section(text, "a", "new") == text.replace("old", "new")
    with pytest.raises(ValueError, match=r"no section <!-- b --> .. <!-- /b -->"):
        tables.replace_section(text, "b", "new")


def test_report_results_have_their_marks_in_the_document():
    text = (ROOT / "research" / "kim2024" / "RESULTS.md").read_text(encoding="utf-8")
    for name in ("results-demo", "results-stories", "results-stories-rules"):
        assert tables.replace_section(text, name, "x").count(f"<!-- {name} -->\nx\n") == 1
