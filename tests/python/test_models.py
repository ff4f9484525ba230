"""BlockwiseLM, its heads and its files."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from blockwise_models import HEADS, VOCAB, looping_text, model_of
from lattice_bpd import FormatError
from lattice_bpd.models import BlockwiseHeads, BlockwiseLM, CallableHeads, SequentialHeads
from lattice_bpd_kim2024.heads.joint import TrainOptions, train_blockwise

SLOTS = HEADS - 1
WIDTH = 32


def ids(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def test_a_head_is_residual_plus_one_hidden_layer_through_the_tied_embedding():
    model, hidden = model_of("gpt2"), torch.randn(32, generator=torch.Generator().manual_seed(1))
    heads = model.heads
    with torch.inference_mode():
        logits = model.head_logits(hidden)
        for slot in range(SLOTS):
            rows = slice(slot * 32, (slot + 1) * 32)
            inner = F.silu(heads.inner.weight[rows] @ hidden + heads.inner.bias[rows])
            state = hidden + heads.outer_weight[rows] @ inner + heads.outer_bias[slot]
            expected = model.base.transformer.wte.weight @ state
            torch.testing.assert_close(logits[slot], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_save_and_load_give_the_same_model(kind, tmp_path):
    model = model_of(kind)
    model.save_pretrained(tmp_path / "model")
    loaded = BlockwiseLM.from_pretrained(tmp_path / "model")
    positions = torch.tensor([[0, 4]])
    with torch.inference_mode():
        before = model(ids(1, 5), head_positions=positions)
        after = loaded(ids(1, 5), head_positions=positions)
    assert torch.equal(before.logits, after.logits)
    assert torch.equal(before.head_logits, after.head_logits)
    assert not loaded.training
    assert not list((tmp_path / "model").glob(".saving*"))  # temporary files are gone
    model.save_pretrained(tmp_path / "model")  # over what is there


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
        BlockwiseLM.from_pretrained(tmp_path)


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="num_heads is 1; expected 2 or more"):
        BlockwiseHeads(8, 1)
    with pytest.raises(ValueError, match="expected both to be 1 or more"):
        BlockwiseHeads(8, 2, 0)
    with pytest.raises(ValueError, match="width 16, the target's output embedding takes 32"):
        BlockwiseLM(model_of("gpt2").base, heads=BlockwiseHeads(16, 3))
    with pytest.raises(ValueError, match=r"shape \(4,\); expected \(batch, tokens\)"):
        model_of("gpt2")(ids(4))
    with pytest.raises(TypeError, match="no output embedding"):
        BlockwiseLM(model_of("gpt2").base.transformer)


class MtpStep(nn.Module):
    """One depth of multi-token prediction: joins state and embedding, then a small network."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.join = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(depth))

    def forward(self, states, embeddings, slot):
        both = torch.cat([F.normalize(states, dim=-1), F.normalize(embeddings, dim=-1)], dim=-1)
        return states + F.silu(self.join[slot](both))


def test_heads_in_turn_see_state_and_token_before_them():
    base, step = model_of("llama").base, MtpStep(3)
    heads = SequentialHeads(step, 3, base)
    hidden, exact = torch.randn(4, WIDTH), torch.tensor([5, 0, 47, 9])
    embed, project = base.get_input_embeddings(), base.get_output_embeddings()
    with torch.inference_mode():
        logits = heads(hidden, exact)
        for row in range(4):
            state, token = hidden[row : row + 1], exact[row : row + 1]
            for slot in range(3):
                state = step(state, embed(token), slot)
                torch.testing.assert_close(logits[row, slot], project(state)[0])
                token = project(state).argmax(-1)
        assert torch.equal(heads(hidden), heads(hidden, project(hidden).argmax(-1)))
    assert not any("_target" in name for name, _ in heads.named_parameters())
    assert heads(hidden[0]).shape == (3, VOCAB)


def test_sources_that_do_not_fit_are_refused(tmp_path):
    base = model_of("llama").base
    with pytest.raises(TypeError, match=r"heads is a function; .*CallableHeads\(function, num_slo"):
        BlockwiseLM(base, heads=lambda hidden: hidden)
    with pytest.raises(ValueError, match=r"shape \(1, 2, 48\) .*expected \(1, 3, V\)"):
        BlockwiseLM(base, heads=CallableHeads(lambda hidden: hidden.new_zeros(1, 2, VOCAB), 3))
    with pytest.raises(ValueError, match="vocabulary of 9, the target one of 48"):
        BlockwiseLM(base, heads=CallableHeads(lambda hidden: hidden.new_zeros(1, 3, 9), 3))
    for kind in (CallableHeads, lambda f, n: SequentialHeads(f, n, base)):
        with pytest.raises(ValueError, match="num_slots is 0; expected 1 or more"):
            kind(np.array, 0)
    model = BlockwiseLM(base, heads=CallableHeads(lambda states: states.new_zeros(1, 3, VOCAB), 3))
    with pytest.raises(TypeError, match="CallableHeads, which have no file format"):
        model.save_pretrained(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with pytest.raises(TypeError, match="the heads are CallableHeads; expected BlockwiseHeads"):
        train_blockwise(model, looping_text(), TrainOptions(steps=1, sequence_length=8))
