"""BlockwiseLM, its heads, its files and its training."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional as F

from blockwise_models import HEADS, POSITIONS, VOCAB, looping_text, model_of
from lattice_bpd import FormatError
from lattice_bpd.models import BlockwiseHeads, BlockwiseLM
from lattice_bpd.train.trainer import Trainer, TrainReport
from lattice_bpd_kim2024.heads.joint import TrainOptions, train_blockwise
from lattice_bpd_kim2024.heads.optimizers import build_optimizers
from lattice_bpd_kim2024.heads.options import HeadText
from lattice_bpd_kim2024.heads.validation import measure_heads
from lattice_bpd_kim2024.small_models import build_small_gpt

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


def test_losses_are_cross_entropies_of_later_and_later_tokens():
    model, batch = model_of("gpt2"), ids(2, 9 + HEADS)
    rows = HeadText(batch.flatten().numpy().astype(np.int32), row_length=9 + HEADS)
    losses = torch.tensor(measure_heads(model, rows, 9).losses)
    with torch.inference_mode():
        output = model(batch[:, :9], head_positions=torch.arange(9).expand(2, -1))
        for head in range(HEADS):
            logits = output.logits if head == 0 else output.head_logits[:, :, head - 1]
            labels = batch[:, 1 + head : 10 + head]
            expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
            torch.testing.assert_close(losses[head], expected, rtol=1e-4, atol=1e-4)


def train(steps: int, **options) -> tuple[BlockwiseLM, list[list[float]]]:
    torch.manual_seed(0)
    model = build_small_gpt(VOCAB, hidden_size=32, num_layers=1, num_heads=HEADS)
    seen: list[list[float]] = []
    settings = TrainOptions(
        steps=steps, batch_size=8, sequence_length=24, warmup=3, head_fraction=0.5, **options
    )
    report = train_blockwise(
        model, looping_text(), settings, lambda report: seen.append(report.losses)
    )
    assert (report.step, len(seen)) == (steps, steps)
    return model, seen


def test_training_lowers_the_loss_of_each_head_and_repeats_by_seed():
    model, seen = train(60, precision="fp32")
    first, last = np.mean(seen[:3], axis=0), np.mean(seen[-3:], axis=0)
    assert (last < 0.8 * first).all()
    again, _ = train(60, precision="fp32")
    for weight, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(weight, other)


@pytest.mark.parametrize("precision", ["bf16", "auto"])
def test_training_in_other_precisions(precision):
    _, seen = train(30, precision=precision)
    assert sum(seen[-1]) < sum(seen[0])


def test_a_frozen_target_stays_as_it_is():
    torch.manual_seed(0)
    model = build_small_gpt(VOCAB, hidden_size=32, num_layers=1, num_heads=HEADS)
    before = [weight.clone() for weight in model.base.parameters()]
    heads = [weight.clone() for weight in model.heads.parameters()]
    options = TrainOptions(steps=3, sequence_length=24, train_base=False, precision="fp32")
    train_blockwise(model, looping_text(), options)
    assert all(map(torch.equal, before, model.base.parameters()))
    assert not any(map(torch.equal, heads, model.heads.parameters()))
    assert all(weight.requires_grad for weight in model.base.parameters())


def test_a_slow_machine_does_fewer_steps():
    torch.manual_seed(0)
    model = build_small_gpt(VOCAB, hidden_size=32, num_layers=1, num_heads=HEADS)
    options = TrainOptions(steps=10**6, sequence_length=24, precision="fp32", max_seconds=1e-6)
    report = train_blockwise(model, looping_text(), options)
    assert report.step == report.steps < 100


def test_muon_trains_matrices_and_adamw_the_others():
    model = build_small_gpt(VOCAB, hidden_size=32, num_layers=1)
    muon, adamw = build_optimizers(model, 0.02, 0.01)
    chosen = {id(weight) for group in muon.param_groups for weight in group["params"]}
    assert id(model.heads.outer_weight) in chosen
    assert id(model.output_embedding.weight) not in chosen
    count = sum(len(group["params"]) for o in (muon, adamw) for group in o.param_groups)
    assert count == len(list(model.parameters()))
    report = TrainReport(0, 100)
    trainer = Trainer({}, [muon, adamw], report, lambda _: {1: 1.0}, warmup=9)
    trainer.take_step()
    assert muon.param_groups[0]["lr"] == pytest.approx(0.02 / 10)
    report.step = 50
    trainer.take_step()
    assert adamw.param_groups[0]["lr"] == pytest.approx(0.01 * (0.05 + 0.95 / 2))


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (np.arange(10), {}, r"shape \(10,\); expected one sequence of 29 or more"),
        (np.full(100, VOCAB), {}, f"token id {VOCAB}"),
        (looping_text(100), {"precision": "fp8"}, "precision is 'fp8'"),
        (looping_text(100), {"steps": 0}, "steps 0"),
        (looping_text(100), {"head_fraction": 0.0}, "head_fraction is 0.0"),
        (
            looping_text(100),
            {"head_weights": [1.0]},
            r"head_weights is \[1.0\]; expected 5 numbers",
        ),
        (looping_text(500), {"sequence_length": POSITIONS + 1}, f"positions for {POSITIONS}"),
    ],
)
def test_bad_training_requests_are_refused(text, options, message):
    settings = TrainOptions(**{"sequence_length": 24, "precision": "fp32", **options})
    with pytest.raises(ValueError, match=message):
        train_blockwise(model_of("gpt2"), text, settings)


def test_training_that_diverges_says_so():
    torch.manual_seed(0)
    model = build_small_gpt(VOCAB, hidden_size=32, num_layers=1)
    options = TrainOptions(steps=40, sequence_length=24, other_lr=math.inf, precision="fp32")
    with pytest.raises(ValueError, match="lower the learning rates"):
        train_blockwise(model, looping_text(), options)
