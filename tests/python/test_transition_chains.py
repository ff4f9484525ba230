"""examples/transition_chains.py: a tiny run."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("rich")
pytest.importorskip("sentencepiece")

from transition_examples import import_example


@pytest.fixture
def example(monkeypatch):
    yield from import_example(monkeypatch, "transition_chains")


def test_a_tiny_run(example, shared_data, tmp_path, capsys):
    options = ["--json", str(tmp_path / "results.json"), "--work", str(tmp_path / "work"),
               "--model", str(shared_data / "stories260K"), "--quick", "--text",
               str(shared_data / "tinystories" / "tinystories_10k.txt")]  # fmt: skip
    recipe = example.Recipe(
        prompt_lengths=(12,), stories=80, row_length=64, inner_size=32, steps=30, order=3,
        prompt_length=16, tune_prompts=2, test_prompts=3, max_new_tokens=20, alphas=(0.4, 0.8),
        temperatures=(1.0, 2.0),
    )  # fmt: skip
    example.main(options, recipe)
    results, printed = json.loads((tmp_path / "results.json").read_text()), capsys.readouterr().out
    lines = {line["name"]: line for line in results["lines"]}
    assert set(lines) == {"best_path", "greedy_walk", "mass_walk", "expected_length"}
    for line in lines.values():
        assert line["tokens"] == lines["best_path"]["tokens"]
        assert all(a <= b for a, b in zip(line["calls"], line["tokens"], strict=True))
    assert lines["mass_walk"]["normalization"] == "global"
    means = results["predictions"]
    assert means["positions"] > 0
    # Under the lattice's distribution no chain is expected to be accepted further.
    assert means["expected_length"]["expected_all"] >= means["mass_walk"]["expected_all"] - 1e-6
    assert "chain of greatest expected length" in printed
