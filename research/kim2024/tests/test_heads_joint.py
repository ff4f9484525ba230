"""`train_blockwise`: losses, precisions, optimizers and refusals."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional as F

from blockwise_models import HEADS, POSITIONS, VOCAB, looping_text, model_of
from lattice_bpd.models import BlockwiseLM
from lattice_bpd.train.trainer import Trainer, TrainReport
from lattice_bpd_kim2024.heads.joint import TrainOptions, train_blockwise
from lattice_bpd_kim2024.heads.optimizers import build_optimizers
from lattice_bpd_kim2024.heads.options import HeadText
from lattice_bpd_kim2024.heads.validation import measure_heads
from lattice_bpd_kim2024.small_models import build_small_gpt


def ids(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


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


@pytest.mark.parametrize("precision", ["bf16", "auto"])
def test_training_in_other_precisions(precision):
    _, seen = train(6, precision=precision)
    assert sum(seen[-1]) < sum(seen[0])


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
