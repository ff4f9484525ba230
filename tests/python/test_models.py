"""BlockwiseLM, its heads and its files."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional as F

from blockwise_models import HEADS, VOCAB, looping_text, model_of
from lattice_bpd import FormatError
from lattice_bpd.models import BlockwiseHeads, BlockwiseLM
from lattice_bpd_kim2024.heads.joint import TrainOptions, train_blockwise

SLOTS = HEADS - 1


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
    with torch.inference_mode():
        before, after = (one.hidden_states(ids(1, 5)) for one in (model, loaded))
        assert torch.equal(model.output_embedding(before), loaded.output_embedding(after))
        assert torch.equal(model.head_logits(before), loaded.head_logits(after))
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
        model_of("gpt2").hidden_states(ids(4))
    with pytest.raises(TypeError, match="no output embedding"):
        BlockwiseLM(model_of("gpt2").base.transformer)


class Zeros:
    """Heads of three slots without a file format."""

    num_slots = 3

    def __call__(self, hidden, exact_tokens):  # noqa: ARG002
        return hidden.new_zeros(*hidden.shape[:-1], 3, VOCAB)


def test_heads_that_do_not_fit_are_refused(tmp_path):
    base = model_of("llama").base
    with pytest.raises(TypeError, match=r"heads is a function; .* callable with num_slots; g"):
        BlockwiseLM(base, heads=lambda hidden: hidden)
    model = BlockwiseLM(base, heads=Zeros())
    assert model.head_logits(torch.ones(2, 32)).shape == (2, 3, VOCAB)
    with pytest.raises(TypeError, match="Zeros, which have no file format"):
        model.save_pretrained(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with pytest.raises(TypeError, match="the heads are Zeros; expected BlockwiseHeads"):
        train_blockwise(model, looping_text(), TrainOptions(steps=1, sequence_length=8))
