"""Heads on one hidden state and their files."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional as F

from blockwise_models import HEADS, model_of
from lattice_bpd import FormatError
from lattice_bpd.decode import DraftingModel
from lattice_bpd.models import BlockwiseHeads, load_heads
from lattice_bpd.models.checkpoint import load_target

SLOTS = HEADS - 1


def test_a_head_is_residual_plus_one_hidden_layer_through_the_tied_embedding():
    model, hidden = model_of("gpt2"), torch.randn(32, generator=torch.Generator().manual_seed(1))
    heads = model.heads
    with torch.inference_mode():
        logits = model.base.get_output_embeddings()(heads(hidden))
        for slot in range(SLOTS):
            rows = slice(slot * 32, (slot + 1) * 32)
            inner = F.silu(heads.inner.weight[rows] @ hidden + heads.inner.bias[rows])
            state = hidden + heads.outer_weight[rows] @ inner + heads.outer_bias[slot]
            expected = model.base.transformer.wte.weight @ state
            torch.testing.assert_close(logits[slot], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("blockwise_heads.json", None, "no draft heads in this folder.*lattice-bpd build --heads"),
        ("blockwise_heads.json", "[]", "is not a"),
        ("blockwise_heads.json", {"version": 9}, "format version 9, expected 1"),
        ("blockwise_heads.json", {"num_heads": 1}, "num_heads is 1, expected an integer of 2"),
        ("blockwise_heads.json", {"num_heads": 7}, "weights cannot be read"),
        ("blockwise_heads.safetensors", "cut", "weights cannot be read"),
        ("model.safetensors", "cut", "model cannot be read"),
    ],
)
def test_damaged_files_are_format_errors(tmp_path, file, damage, message):
    model_of("gpt2").save_pretrained(tmp_path)
    path = tmp_path / file
    if damage is None:
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:100])
    elif isinstance(damage, dict):
        path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    else:
        path.write_text(damage)
    with pytest.raises(FormatError, match=message):
        load_target(tmp_path) if file == "model.safetensors" else load_heads(tmp_path)


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="num_heads is 1; expected 2 or more"):
        BlockwiseHeads(8, 1)
    with pytest.raises(ValueError, match="expected both to be 1 or more"):
        BlockwiseHeads(8, 2, 0)
    with pytest.raises(ValueError, match="width 16, the target's output embedding takes 32"):
        DraftingModel(model_of("gpt2").base, BlockwiseHeads(16, 3))
