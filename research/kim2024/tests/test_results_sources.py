"""scripts/write_results.py: the rows of stories260K, with a tiny recipe."""

from __future__ import annotations

import importlib
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("rich")
pytest.importorskip("sentencepiece")

ROOT = Path(__file__).resolve().parents[3]
MODULES = ("write_results", "results_tables", "stories260k_parts", "stories260k_scorers")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("write_results")
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.filterwarnings("ignore::lattice_bpd.lm.training.SmoothingWarning")
def test_stories_have_neural_rows_h_max_and_perplexity(script, shared_data, tmp_path, monkeypatch):
    parts = importlib.import_module("stories260k_parts")
    scorers = importlib.import_module("stories260k_scorers")
    monkeypatch.setattr(parts, "QUICK", parts.Recipe(
        prompt_lengths=(12,), stories=60, row_length=48, inner_size=32, steps=20, order=3,
        max_new_tokens=12,
    ))  # fmt: skip
    training = scorers.TrainOptions(
        steps=5, batch_size=4, sequence_length=32, precision="fp32", warmup=1
    )
    tiny = replace(scorers.QUICK_SCORERS, hidden_size=32, num_layers=1, training=training)
    monkeypatch.setattr(scorers, "QUICK_SCORERS", tiny)
    monkeypatch.setattr(
        script, "STORY_TASKS", {task: script.STORY_TASKS[task] for task in ("samsum", "lambada")}
    )
    monkeypatch.setattr(script, "RULES", {})
    args = Namespace(data=shared_data, work=tmp_path, limit=4)
    results = script.evaluate("stories", script.stories_source(args), args)
    assert list(results["tasks"]) == ["tinystories", "samsum", "lambada"]
    for task in results["tasks"].values():
        assert {"bpd", "neural", "mixture", "tree"} <= {line["name"] for line in task["strategies"]}
    page = tmp_path / "page.md"
    page.write_text("<!-- results-stories -->\n<!-- /results-stories -->\n")
    script.write_sections(page, "stories", results, "command")
    text = page.read_text()
    assert "| neural BPD | " in text
    assert script.H_MAX_TITLE in text
    assert "Perplexity of the target, per token: lambada " in text
    assert "R = " in text or "R is not defined" in text
