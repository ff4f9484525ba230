"""examples/transition_chains.py: the walk over exact prefix masses, counts of calls, a tiny run."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("rich")
pytest.importorskip("sentencepiece")

from lattice_bpd import NGramLM, rescore_lattice, rescore_tree
from lattice_bpd.lattice.lattice_input import LatticeInput
from transition_examples import import_example

SLOTS, VOCAB = 4, 5
OPTIONS = {"alpha": 1.3, "temperature": 1.7}


@pytest.fixture
def example(monkeypatch):
    yield from import_example(monkeypatch, "transition_chains")


def lm_of(rng):
    text = rng.integers(0, VOCAB, 400, dtype=np.int32)
    text[1:] = np.where(rng.random(399) < 0.6, (text[:-1] * 3 + 1) % VOCAB, text[1:])
    return NGramLM.train([text], 3, vocab_size=VOCAB, smoothing="witten_bell")


def masses_of(logits, context, lm):
    """The probability of every prefix of the lattice: a tree of all prefixes has the exact ones."""
    tree = rescore_tree(logits, context, lm, top_k=3, max_nodes=4096, **OPTIONS)
    prefixes, masses = [], {}
    rows = zip(tree.token_ids[0], tree.parents[0], tree.log_probs[0], strict=True)
    for token, parent, log_prob in list(rows)[: int(tree.counts[0])]:
        prefixes.append((*(prefixes[parent] if parent >= 0 else ()), int(token)))
        masses[prefixes[-1]] = float(log_prob)
    assert len(masses) == 3 + 9 + 27 + 81
    return masses


def test_the_walk_takes_the_most_probable_child(example):
    rng, differ = np.random.default_rng(4), []
    lm = lm_of(rng)
    logits = rng.normal(0.0, 1.5, (40, SLOTS, VOCAB)).astype(np.float32)
    contexts = [[int(token)] for token in rng.integers(0, VOCAB, 40)]
    lattice = LatticeInput.from_logits(logits, 3)
    paths, log_probs = example.walk_masses(lattice, contexts, lm, **OPTIONS)
    for row, context in enumerate(contexts):
        masses, path = masses_of(logits[row], context, lm), ()
        for _ in range(SLOTS):
            path = max((p for p in masses if p[:-1] == path), key=lambda p: masses[p])
        assert tuple(paths[row]) == path
        prefixes = [path[: slot + 1] for slot in range(SLOTS)]
        np.testing.assert_allclose(log_probs[row], [masses[p] for p in prefixes], atol=1e-5)
        expected = sum(np.exp(masses[prefix]) for prefix in prefixes)
        searches = {
            objective: rescore_lattice(
                logits[row], context, lm, top_k=3, num_drafts=1, objective=objective, **OPTIONS
            )
            for objective in ("score", "accept_length", "greedy_walk")
        }
        assert float(searches["accept_length"].scores[0, 0]) >= expected - 1e-5
        differ.append([tuple(one.token_ids[0, 0]) != path for one in searches.values()])
    assert (np.sum(differ, axis=0) > 0).all()  # none of the others is the same search


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
