"""BlockwiseLM, its heads and its files."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional as F

from blockwise_models import HEADS, VOCAB, model_of
from lattice_bpd import FormatError
from lattice_bpd.models import BlockwiseHeads, BlockwiseLM

SLOTS = HEADS - 1


def ids(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_head_one_is_the_target_itself(kind):
    model, batch = model_of(kind), ids(3, 7)
    with torch.inference_mode():
        output = model(batch)
        torch.testing.assert_close(output.logits, model.base(input_ids=batch).logits)
    assert output.logits.shape == (3, 7, VOCAB)
    assert output.hidden.shape == (3, 7, 32)
    assert output.head_logits is None
    assert output.cache is None


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


@pytest.mark.parametrize("slots", [range(SLOTS), range(2), [0], [2], [1, 3]])
@pytest.mark.parametrize("is_trained", [False, True])
def test_states_and_gradients_of_some_slots_are_those_of_all(slots, is_trained):
    torch.manual_seed(0)
    heads, hidden = BlockwiseHeads(8, HEADS, 6), torch.randn(3, 2, 8)
    torch.nn.init.normal_(heads.outer_weight)
    torch.nn.init.normal_(heads.outer_bias)
    with torch.set_grad_enabled(is_trained):
        some, all_slots = heads(hidden, slots), heads(hidden)
    assert some.is_contiguous()
    assert some.shape == (3, 2, len(slots), 8)
    torch.testing.assert_close(some, all_slots[:, :, list(slots)])
    if is_trained:
        weights = list(heads.parameters())
        torch.testing.assert_close(
            torch.autograd.grad(some.square().sum(), weights),
            torch.autograd.grad(all_slots[:, :, list(slots)].square().sum(), weights),
        )


def test_head_logits_only_at_requested_positions():
    model, batch = model_of("llama"), ids(2, 6)
    positions = torch.tensor([[5, 0], [2, 3]])
    with torch.inference_mode():
        output = model(batch, head_positions=positions, logit_positions=1)
        assert output.logits.shape == (2, 1, VOCAB)
        assert output.head_logits.shape == (2, 2, SLOTS, VOCAB)
        expected = model.head_logits(output.hidden[1, 3])
    torch.testing.assert_close(output.head_logits[1, 1], expected)


def test_new_heads_start_as_copies_of_the_target():
    model = BlockwiseLM(model_of("gpt2").base, num_heads=3)
    with torch.inference_mode():
        output = model(ids(1, 4), head_positions=torch.tensor([[3]]))
    for slot in range(2):
        torch.testing.assert_close(output.head_logits[0, 0, slot], output.logits[0, 3])


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
        ("blockwise_heads.json", None, "no draft heads in this folder"),
        ("blockwise_heads.json", "{", "cannot be read"),
        ("blockwise_heads.json", "[]", "is not a"),
        ("blockwise_heads.json", {"version": 9}, "format version 9, expected 1"),
        ("blockwise_heads.json", {"num_heads": 1}, "num_heads is 1, expected an integer of 2"),
        ("blockwise_heads.json", {"num_heads": 7}, "weights cannot be read"),
        ("blockwise_heads.safetensors", None, "weights cannot be read"),
        ("blockwise_heads.safetensors", "cut", "weights cannot be read"),
        ("model.safetensors", None, "model cannot be read"),
        ("model.safetensors", "cut", "model cannot be read"),
        ("config.json", "{", "model cannot be read"),
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
