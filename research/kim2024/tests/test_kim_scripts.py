"""A run at tiny sizes of each script, example and benchmark of the paper's experiments."""

from __future__ import annotations

import importlib
import json
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from lattice_bpd.draft.replay import KnownText

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports modules of scripts/, examples/, benchmarks/ and of this distribution by name."""
    folders = [ROOT / name for name in ("scripts", "examples", "benchmarks", "research/kim2024")]
    monkeypatch.setattr(sys, "path", [*map(str, folders), *sys.path])
    before = set(sys.modules)
    yield importlib.import_module
    for name in {*sys.modules} - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent in folders:
            del sys.modules[name]


@pytest.fixture
def stories(load: Any) -> Any:
    """The parts of the example on stories260K."""
    pytest.importorskip("rich")
    pytest.importorskip("sentencepiece")
    return load("stories260k_parts")


def test_the_benchmark_of_training_choices(load: Any, capsys: pytest.CaptureFixture[str]) -> None:
    load("bench_kim_training").main(["--quick", "--only", "first_head"])
    assert "ours, network on head 1" in capsys.readouterr().out


def test_the_example_on_stories(
    stories: Any, load: Any, shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scorers = load("stories260k_scorers")
    sizes = {"batch_size": 8, "sequence_length": 48, "precision": "fp32", "warmup": 3}
    recipes = (
        stories.Recipe(
            prompt_lengths=(12,), stories=120, row_length=72, inner_size=64, steps=60, order=3,
            prompt_length=16, tune_prompts=3, test_prompts=5, max_new_tokens=24, alphas=(0.8,),
            temperatures=(1.0, 2.0), num_drafts=4, max_nodes=12,
        ),
        scorers.ScorerRecipe(
            corpus_tokens=8000, hidden_size=32, num_layers=1, alphas=(1.0,), ngram_weights=(0.5,),
            training=scorers.TrainOptions(steps=30, **sizes),
        ),
    )  # fmt: skip
    options = ["--json", str(tmp_path / "results.json"), "--work", str(tmp_path / "work"), "--all"]
    options += ["--model", str(shared_data / "stories260K")]
    options += ["--text", str(shared_data / "tinystories" / "tinystories_10k.txt")]
    for trains in (True, False):  # the second run finds what the first one trained
        load("stories260k").main(options, *recipes)
        assert ("training the rescorer" in capsys.readouterr().out) == trains
    results = json.loads((tmp_path / "results.json").read_text())
    lines = {line["name"]: line for line in results["strategies"]}
    assert {"tree", "ngram_distilled", "neural", "ngram_neural", "oracle"} <= set(lines)
    assert all(line["lossless"] and line["draft_failures"] == {} for line in lines.values())
    assert lines["tree"]["block_efficiency"] > lines["bpd"]["block_efficiency"] > 1.0


@pytest.mark.filterwarnings("ignore::lattice_bpd.lm.training.SmoothingWarning")
def test_the_rows_of_the_results_on_stories(
    stories: Any, load: Any, shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, scorers = load("write_results"), load("stories260k_scorers")
    monkeypatch.setattr(stories, "QUICK", stories.Recipe(
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
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- results-stories -->\n<!-- /results-stories -->\n")
    script.write_sections(page, "stories", results, "command")
    text = page.read_text()
    assert text.startswith("before\n<!-- results-stories -->\n")
    for part in ("| neural BPD | ", script.H_MAX_TITLE, "Perplexity of the target, per token: lam"):
        assert part in text


def test_the_page_of_results_has_its_marks(load: Any) -> None:
    text = (ROOT / "research" / "kim2024" / "RESULTS.md").read_text(encoding="utf-8")
    for name in ("results-demo", "results-stories", "results-stories-rules"):
        replaced = load("results_tables").replace_section(text, name, "x")
        assert replaced.count(f"<!-- {name} -->\nx\n") == 1


def test_agreement_of_lists_and_trees_with_answers(load: Any) -> None:
    script = load("real_llm")
    following = np.array([[5, 6, 9], [7, 6, -1], [1, -1, -1]], np.int32)
    drafts = np.array([[[5, 6, 1], [7, 6, -1]]] * 3, np.int32)
    assert script.accepted_of_lists(drafts, following).tolist() == [2, 2, 0]
    tree = SimpleNamespace(
        token_ids=np.array([[5, 7, 6, -1]] * 3, np.int32),
        parents=np.array([[-1, -1, 0, -1]] * 3, np.int32),
        depths=np.array([[0, 0, 1, 0]] * 3, np.int32),
    )
    assert script.accepted_of_trees(tree, following).tolist() == [2, 1, 0]
    candidates = np.tile(np.arange(3, dtype=np.int32), (4, 2, 1)), np.zeros((4, 2, 3), np.float32)
    half = script.Half.of([KnownText([9, 8, 1, 2, 3, 4], 2, candidates)], ["a"])
    assert half.following.tolist() == [[2, 3], [3, 4], [4, -1], [-1, -1]]
    # two draft tokens after the first token: 1 (prompt) + 3 in one call
    assert half.replay(np.array([2, 0, 0, 0])) == ([4], [2])
    assert half.replay(np.array([0, 1, 0, 0])) == ([4], [3])
