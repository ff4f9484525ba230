"""The committed demo model, and the training that keeps small models from looping."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("rich")

import torch

import unlikelihood
from blockwise_models import VOCAB, model_of
from lattice_bpd_kim2024.demo.model_folder import load_demo_model
from lattice_bpd_kim2024.statistics import count_looping, find_repeats

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "examples" / "demo_model"


def test_repeated_windows_by_hand():
    # 1 2 3 occurs again at positions 3..5, 2 3 1 at 4..6.
    assert np.flatnonzero(find_repeats([1, 2, 3, 1, 2, 3, 1], 3)).tolist() == [5, 6]
    assert not any(find_repeats([1, 2, 3, 4, 5, 6, 7], 3))
    assert count_looping([1, 2], [3, 1, 2, 3], window=2) == 2
    for row in np.random.default_rng(0).integers(0, 3, size=(20, 40)).tolist():
        repeats = find_repeats(row, 4)
        assert repeats == [
            end >= 4 and any(row[at : at + 4] == row[end - 3 : end + 1] for at in range(end - 3))
            for end in range(len(row))
        ]


def test_the_penalty_is_that_of_marked_tokens():
    base = model_of("trained").base
    rows = np.random.default_rng(1).integers(0, VOCAB, size=(3, 12)).astype(np.int32)
    marks = np.zeros(rows.shape, dtype=bool)
    assert float(unlikelihood._penalty(base, rows, marks)) == 0.0
    marks[1, 5] = marks[2, 11] = True
    with torch.no_grad():
        penalty = float(unlikelihood._penalty(base, rows, marks))
        chances = base(input_ids=torch.as_tensor(rows.astype(np.int64))).logits.softmax(dim=-1)
    marked = [chances[1, 4, rows[1, 5]], chances[2, 10, rows[2, 11]]]
    assert penalty == pytest.approx(-np.log1p(-np.array(marked)).mean(), rel=1e-4)


@pytest.fixture(scope="module")
def demo():
    return load_demo_model(FOLDER)


def test_auto_classes_of_transformers_load_the_folder(demo):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)
    text = "def read_lines(path):\n    with open(path) as file:\n        return file.read()\n"
    ids = tokenizer.encode(text)
    assert ids == demo.tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.eos_token_id == demo.settings.end_of_text
    model = AutoModelForCausalLM.from_pretrained(FOLDER, local_files_only=True, dtype=torch.float32)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits
        expected = demo.model.base(input_ids=torch.tensor([ids])).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
