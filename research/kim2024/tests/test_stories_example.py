"""examples/stories260k.py with a tiny recipe: the table, the results file, and a second run."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("rich")
pytest.importorskip("sentencepiece")


EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
NAMES = ["greedy", "bpd", "p_best_0gram", "p_best_ngram", "tree_0gram", "tree", "oracle"]


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module("stories260k")
    for name in ("stories260k", "stories260k_parts", "stories260k_scorers"):
        sys.modules.pop(name, None)


def tiny(example):
    return example.Recipe(
        prompt_lengths=(12,), stories=120, row_length=72, inner_size=64, steps=60, order=3,
        prompt_length=16, tune_prompts=3, test_prompts=5, max_new_tokens=24, alphas=(0.8,),
        temperatures=(1.0, 2.0), num_drafts=4, max_nodes=12,
    )  # fmt: skip


def test_stories_example_twice(example, shared_data, tmp_path, capsys):
    options = ["--json", str(tmp_path / "results.json"), "--work", str(tmp_path / "work")]
    options += ["--model", str(shared_data / "stories260K")]
    options += ["--text", str(shared_data / "tinystories" / "tinystories_10k.txt")]
    example.main([*options, "--sweep"], tiny(example))
    first, printed = json.loads((tmp_path / "results.json").read_text()), capsys.readouterr().out
    lines = {line["name"]: line for line in first["strategies"]}
    assert list(lines) == NAMES
    assert all(line["lossless"] for line in lines.values())
    assert lines["greedy"]["block_efficiency"] == 1.0
    assert lines["tree"]["block_efficiency"] > lines["bpd"]["block_efficiency"] > 1.0
    assert {"alpha", "top_k", "num_drafts", "order", "num_heads", "prompts"} <= set(first)
    assert first["prompts"] == 5
    assert "12-node 3-gram tree" in printed
    assert "p_best_ngram 16" in printed
    example.main(options, tiny(example))
    second, printed = json.loads((tmp_path / "results.json").read_text()), capsys.readouterr().out
    assert "training heads" not in printed
    for line in second["strategies"]:
        assert line["target_calls"] == lines[line["name"]]["target_calls"]
    (text,) = (tmp_path / "work").glob("*/text.npy")
    text.write_bytes(text.read_bytes()[:50])
    with pytest.raises(ValueError, match=r"text\.npy: was cut .*to begin again"):
        example.main(options, tiny(example))


def test_stories_example_with_all_scorers(example, shared_data, tmp_path, capsys):
    scorers = importlib.import_module("stories260k_scorers")
    recipe = scorers.ScorerRecipe(
        corpus_tokens=8000, hidden_size=32, num_layers=1,
        training=scorers.TrainOptions(
            steps=30, batch_size=8, sequence_length=48, precision="fp32", warmup=3
        ),
        alphas=(1.0,), ngram_weights=(0.5,),
    )  # fmt: skip
    options = ["--json", str(tmp_path / "results.json"), "--work", str(tmp_path / "work"), "--all"]
    options += ["--model", str(shared_data / "stories260K")]
    options += ["--text", str(shared_data / "tinystories" / "tinystories_10k.txt")]
    example.main(options, tiny(example), recipe)
    printed = capsys.readouterr().out
    assert "training the rescorer" in printed
    lines = {line["name"]: line for line in
             json.loads((tmp_path / "results.json").read_text())["strategies"]}  # fmt: skip
    more = ["ngram_1best", "ngram_corpus", "ngram_distilled", "neural", "ngram_neural"]
    assert list(lines) == [*NAMES[:-1], *more, "oracle"]
    assert all(line["lossless"] and line["scorer_failures"] == {} for line in lines.values())
    assert lines["ngram_neural"]["block_efficiency"] > 1.0
    example.main(options, tiny(example), recipe)
    assert "training the rescorer" not in capsys.readouterr().out


def test_stories_example_without_text_uses_the_models_own(example, shared_data, tmp_path):
    recipe = tiny(example)
    options = ["--model", str(shared_data / "stories260K"), "--text", str(tmp_path / "none.txt")]
    args = example.read_arguments(options)
    parts = importlib.import_module("stories260k_parts")
    base = parts.load_llama2c(args.model / "stories260K.bin")
    beginnings = parts.read_beginnings(args, base, recipe)
    assert (len(beginnings.tune), len(beginnings.test)) == (3, 5)
    assert not {tuple(prompt) for prompt in beginnings.tune} & {
        tuple(prompt) for prompt in beginnings.test
    }
    assert all(len(prompt) == 16 and prompt[0] == 1 for prompt in beginnings.test)


def test_stories_example_names_a_missing_model(example, tmp_path, capsys):
    with pytest.raises(SystemExit):
        example.main(["--model", str(tmp_path)])
    assert "has no stories260K.bin; expected the model of llama2.c" in capsys.readouterr().err
