"""specdec_translation.py runs whole on a made-up language, and says what is true."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sacrebleu")
pytest.importorskip("tokenizers")

from lattice_bpd import NGramLM
from lattice_bpd.models import BlockwiseHeads
from lattice_bpd_translation.drafter import SpecDrafter
from sentence_pairs import write_sentence_pairs

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
