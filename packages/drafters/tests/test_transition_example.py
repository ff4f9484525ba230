"""examples/transition_scores.py with a tiny recipe: lines, results file, lossless output."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("rich")
pytest.importorskip("sentencepiece")

from lattice_bpd_drafters.block_training import BlockTrainOptions
from lattice_bpd_drafters.selector_texts import SelectorOptions

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture
def example(monkeypatch):
    """The module; the modules of examples/ that it imports are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module("transition_scores")
    for name in set(sys.modules) - before:
        if str(EXAMPLES) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


def test_lines_of_both_domains(example, shared_data, tmp_path, capsys):
    (tmp_path / "other.txt").write_text("the cat sat on the mat and " * 20)
    options = ["--json", str(tmp_path / "results.json"), "--work", str(tmp_path / "work"),
               "--model", str(shared_data / "stories260K"), "--shifted",
               str(tmp_path / "other.txt"), "--text",
               str(shared_data / "tinystories" / "tinystories_10k.txt")]  # fmt: skip
    recipe = example.Recipe(
        prompt_lengths=(12,), stories=40, row_length=40, inner_size=32, steps=10, order=3,
        prompt_length=16, tune_prompts=2, test_prompts=2, max_new_tokens=6, alphas=(0.8,),
        temperatures=(1.0,), num_drafts=4,
    )  # fmt: skip
    block = example.BlockRecipe(
        example.QUICK_BLOCK.config, BlockTrainOptions(steps=3, batch_size=2)
    )
    pairs = example.PairRecipe(SelectorOptions(steps=3, batch_size=2, anchors=8))
    example.main(options, recipe, block, pairs)
    results, printed = json.loads((tmp_path / "results.json").read_text()), capsys.readouterr().out
    searches = ["greedy_walk", "best_path", "expected_length", "p_best", "tree18", "tree36"]
    expected = {"greedy"}
    for drafter in ("heads", "block"):
        expected |= {f"{drafter}/oracle", f"{drafter}/unary/argmax"}
        for scores in ("unary", "pairs", "ngram", "pairs_ngram"):
            expected |= {f"{drafter}/{scores}/{search}" for search in searches}
    for part in ("strategies", "shift"):
        lines = {line["name"]: line for line in results[part]}
        assert set(lines) == expected
        assert all(line["lossless"] for line in lines.values())
        assert lines["greedy"]["block_efficiency"] == 1.0
        assert lines["greedy"]["relative_speed"] is None
    assert results["gains"]["heads/tree36"].keys() == {
        "pairs over unary", "ngram over unary", "pairs_ngram over pairs", "pairs_ngram over ngram",
    }  # fmt: skip
    assert results["shift_gains"].keys() == results["gains"].keys()
    assert results["options"]["heads/pairs/tree36"]["normalization"] is None
    assert "2 beginnings of other" in printed
