"""examples/specdec_translation.py runs whole on a made-up language, and says what is true."""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sacrebleu")
pytest.importorskip("tokenizers")

import lattice_bpd.verify
from lattice_bpd import NGramLM
from lattice_bpd.models import BlockwiseHeads, SpecDrafter

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class LooseRule:
    """Stands in where the rule of that name is not there."""

    name, lossless, guarantee, ended = "specdec++", False, "", False

    def __init__(self, top_beta, tau):
        self.top_beta, self.tau = top_beta, tau

    def start(self, sequence):  # noqa: ARG002
        return self

    def choose(self, logits, offer):
        scores, best = logits.topk(self.top_beta)
        liked = [int(t) for s, t in zip(scores, best, strict=True) if s >= scores[0] - self.tau]
        return next((token for token in offer.token_ids if token in liked), liked[0])


@pytest.fixture
def folder(tmp_path):
    """Multi30k's files with sentences of a language of twelve words."""
    rng = random.Random(0)
    for name, count in (("train", 120), ("val", 6), ("test_2016_flickr", 6)):
        words = [[rng.randrange(12) for _ in range(rng.randint(2, 5))] for _ in range(count)]
        for language, letter in (("de", "q"), ("en", "w")):
            lines = [" ".join(letter + "abcdefghijkl"[n] for n in text) + "." for text in words]
            with gzip.open(tmp_path / f"{name}.{language}.gz", "wt") as file:
                file.write("\n".join(lines) + "\n")
    return tmp_path


def test_it_prints_its_table_and_keeps_what_it_is_told_to(folder, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    if not hasattr(lattice_bpd.verify, "SpecDecPlusPlus"):
        monkeypatch.setattr(lattice_bpd.verify, "SpecDecPlusPlus", LooseRule, raising=False)
    import specdec_translation
    from specdec_translation_parts import Recipe

    recipe = Recipe(
        vocab_size=40, hidden_size=16, target_steps=12, target_batch=8, heads_steps=4,
        drafter_steps=4, drafter_batch=8, num_slots=3, order=2, alphas=(0.1, 0.3), top_k=4,
        tune_sentences=2, test_sentences=3, max_new_tokens=8, distilled=60,
    )  # fmt: skip
    out = folder / "models"
    arguments = ["--data", str(folder), "--json", str(folder / "r.json"), "--out", str(out)]
    rows = specdec_translation.main(arguments, recipe)
    printed = capsys.readouterr().out
    found = json.loads((folder / "r.json").read_text())["strategies"]
    assert list(found) == [row.name for row in rows]
    assert all(name in printed for name in found)
    for row in rows:
        assert found[row.name]["differing"] == 0 or not row.lossless
        assert row.stats.tokens == sum(map(len, row.outputs))
        assert 0.0 <= found[row.name]["bleu"] <= 100.0
    assert found["greedy"]["block_efficiency"] == 1.0
    assert BlockwiseHeads.from_pretrained(out).num_slots == 3
    assert SpecDrafter.from_pretrained(out).num_slots == 3
    assert NGramLM.load(out / "target-text.lm").vocab_size == 40


def test_sweeps_of_what_it_kept_and_a_target_taught_by_a_larger_one(folder, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import specdec_sweeps
    import specdec_translation
    from specdec_translation_parts import Recipe

    recipe = Recipe(
        vocab_size=40, hidden_size=16, target_steps=30, target_batch=8, heads_steps=2,
        drafter_steps=20, drafter_batch=8, num_slots=3, order=2, alphas=(0.3,), top_k=4,
        tune_sentences=2, test_sentences=2, max_new_tokens=8, distilled=60, teacher_layers=2,
    )  # fmt: skip
    out, found = folder / "models", folder / "sweeps.json"
    options = ["--data", str(folder)]
    specdec_translation.main([*options, "--out", str(out), "--teacher", "24"], recipe)
    assert "training the teacher" in capsys.readouterr().out
    sweep = specdec_sweeps.Sweep(
        validation=6, test=5, top_k=4, max_nodes=5, alphas=(0.2, 0.5), temperatures=(1.0,),
        betas=(2,), taus=(0.5, 9.0), max_new_tokens=8,
    )  # fmt: skip
    results = specdec_sweeps.main([str(out), *options, "--json", str(found)], sweep)
    assert json.loads(found.read_text()) == json.loads(json.dumps(results))
    sizes = {line["block_size"] for line in results["by_block_size"]}
    assert sizes == {1, 2, 3}
    by_size = {(one["strategy"], one["block_size"]): one["block_efficiency"]
               for one in results["by_block_size"]}  # fmt: skip
    assert all(by_size["oracle", size] >= by_size["bpd", size] for size in sizes)
    assert len(results["specdec++ on validation"]) == 1 + 3 * 2
    exact = [line for line in results["test"] if line["rule"] == "exact"]
    assert len({line["bleu"] for line in exact}) == 1
    assert [line["sentences"] for line in results["test"]] == [5] * len(results["test"])
    with pytest.raises(FileNotFoundError, match=r"no target/config\.json"):
        specdec_sweeps.main([str(folder), *options])


def test_the_best_rule_within_the_allowed_loss_is_chosen(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from specdec_sweeps import Way, choose

    from lattice_bpd.decode import DecodeStats
    from lattice_bpd.verify.acceptance import SpecDecPlusPlus

    def way(name, bleu, calls, tau):
        rule = SpecDecPlusPlus(3, tau)
        return Way(name, {}, rule, [], DecodeStats(target_calls=calls, tokens=100), bleu)

    greedy = Way("greedy", {}, bleu=30.0)
    ways = [greedy, way("a", 29.6, 40, 0.2), way("a", 29.5, 30, 0.5), way("a", 29.4, 20, 1.0),
            way("b", 29.0, 10, 1.0)]  # fmt: skip
    assert choose(ways, "a").tau == 0.5
    assert choose(ways, "b") is None


def test_a_folder_without_the_data_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "specdec_translation", raising=False)
    import specdec_translation

    with pytest.raises(SystemExit):
        specdec_translation.main(["--data", str(tmp_path)])
    assert "no train.de.gz" in capsys.readouterr().err
