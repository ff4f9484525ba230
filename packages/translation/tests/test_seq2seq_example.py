"""specdec_translation.py runs whole on a made-up language, and says what is true."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sacrebleu")
pytest.importorskip("tokenizers")

from sentence_pairs import write_sentence_pairs

from lattice_bpd import NGramLM
from lattice_bpd.models import BlockwiseHeads
from lattice_bpd_translation.drafter import SpecDrafter

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def folder(tmp_path):
    return write_sentence_pairs(tmp_path, train=120, others=6)


def test_it_prints_its_table_and_keeps_what_it_is_told_to(folder, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
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
    specdec_translation.main(
        [*options, "--json", str(found), "--out", str(out), "--teacher", "24"], recipe
    )
    printed = capsys.readouterr().out
    assert f"BLEU of the teacher: {json.loads(found.read_text())['teacher_bleu']:.2f}" in printed
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


def test_losses_are_of_corpus_bleu_and_their_errors_of_resampled_sentences(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import numpy as np
    import sacrebleu
    import specdec_sweeps

    monkeypatch.setattr(specdec_sweeps, "to_text", lambda tokenizer, output: " ".join(output))  # noqa: ARG005
    rng = random.Random(1)
    words = ["A", "man", "in", "the", "blue", "shirt", "walks", "on", "a", "street"]
    references = [rng.choices(words, k=rng.randint(5, 9)) for _ in range(40)]

    def disturbed(share):
        return [[rng.choice(words) if rng.random() < share else word for word in text]
                for text in references]  # fmt: skip

    ways = [specdec_sweeps.Way(str(share), {}, outputs=disturbed(share)) for share in (0.1, 0.4)]
    lines = [" ".join(text) for text in references]
    specdec_sweeps.score_losses(ways, None, lines)

    def score(way, rows):
        outputs = [" ".join(way.outputs[row]) for row in rows]
        return sacrebleu.corpus_bleu(outputs, [[lines[row] for row in rows]], lowercase=True).score

    for way in ways:
        assert way.bleu == pytest.approx(score(way, range(40)))
    assert ways[0].loss == 0.0 == ways[0].loss_error
    assert ways[1].loss == pytest.approx(ways[0].bleu - ways[1].bleu)
    assert ways[1].loss > 10
    samples = np.random.default_rng(5).integers(0, 40, (300, 40))
    losses = [score(ways[0], rows) - score(ways[1], rows) for rows in samples]
    assert ways[1].loss_error == pytest.approx(np.std(losses), rel=0.2)


def test_a_folder_without_the_data_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "specdec_translation", raising=False)
    import specdec_translation

    with pytest.raises(SystemExit):
        specdec_translation.main(["--data", str(tmp_path)])
    assert "no train.de.gz" in capsys.readouterr().err
