"""The committed demo model, and the training that keeps small models from looping."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("rich")

import torch

import unlikelihood
from blockwise_models import VOCAB, looping_text, model_of
from lattice_bpd_kim2024.demo.library_text import draw_prompts, read_library_sources
from lattice_bpd_kim2024.demo.model_folder import load_demo_model
from lattice_bpd_kim2024.heads.self_generated import generate_texts
from lattice_bpd_kim2024.statistics import count_looping, find_repeats, loop_share

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


def test_training_makes_repeated_tokens_less_likely(monkeypatch):
    model = copy.deepcopy(model_of("trained"))
    heads = {name: weight.clone() for name, weight in model.heads.state_dict().items()}
    rows = np.tile(np.array([5, 6, 7, 8], dtype=np.int32), (8, 8))  # what "greedy" outputs
    monkeypatch.setattr(unlikelihood, "generate_texts", lambda *_: rows)
    marks = np.array([find_repeats(row, 4) for row in rows.tolist()])
    marks[:, :8] = False
    with torch.no_grad():
        before = float(unlikelihood._penalty(model.base, rows, marks))
    shares: list[float] = []
    options = unlikelihood.UnlikelihoodOptions(
        steps=8, prompts=8, prompt_length=8, max_new_tokens=24, window=4, text_rows=4,
        matrix_lr=0.01, other_lr=0.01,
    )  # fmt: skip
    text = looping_text(400, seed=5)
    unlikelihood.train_unlikelihood(model, text, options, lambda _loss, share: shares.append(share))
    with torch.no_grad():
        after = float(unlikelihood._penalty(model.base, rows, marks))
    assert shares == [1.0] * 8
    assert after < 0.7 * before
    assert not model.base.training
    for name, weight in model.heads.state_dict().items():
        assert torch.equal(weight, heads[name])


@pytest.fixture(scope="module")
def demo():
    return load_demo_model(FOLDER)


def test_the_committed_folder_is_small_and_not_in_the_wheel(demo):
    assert sum(path.stat().st_size for path in FOLDER.rglob("*")) <= 8 << 20
    assert "examples" not in (ROOT / "pyproject.toml").read_text().split("wheel.packages")[1][:60]
    assert demo.lm.order == demo.settings.order == 4
    assert demo.model.num_slots == 8


def test_loops_are_as_the_model_card_says(demo):
    settings = demo.settings
    assert settings.loops["model"] <= 1.5 * settings.loops["human"]
    documents = demo.encode(read_library_sources().test)
    length = settings.prompt_length + settings.max_new_tokens
    rows = draw_prompts(documents, 64, length, 0, settings.seed)
    prompts = [row[: settings.prompt_length] for row in rows]
    outputs = generate_texts(demo.model.base, prompts, settings.max_new_tokens)
    new = [row[settings.prompt_length :].tolist() for row in outputs]
    ended = [row[: row.index(0) + 1] if 0 in row else row for row in new]
    assert loop_share(prompts, ended) <= 2.0 * settings.loops["human"]


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
