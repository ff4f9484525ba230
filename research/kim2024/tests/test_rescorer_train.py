"""`rescorer train` from files to files: sizes, the result, resumed runs, refusals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from heads_training import (
    check_resumed,
    read_losses,
    read_weights,
    write_base,
    write_text,
)
from transformers import AutoModelForCausalLM, GPTNeoXForCausalLM

from blockwise_models import VOCAB, looping_text
from lattice_bpd.cli import main
from lattice_bpd_kim2024.rescorer import RescorerJob, run_rescorer_job
from lattice_bpd_kim2024.small_models import build_rescorer

TRAIN = {"steps": 12, "batch_size": 4, "sequence_length": 16, "warmup": 2, "precision": "fp32"}


def make_job(folder: Path, **options: Any) -> RescorerJob:
    """A short run on files in `folder`, which are written where they are missing."""
    if not (folder / "target").is_dir():
        write_base(folder / "target")
    fields: dict[str, Any] = {
        "corpus": {"vocab_size": VOCAB}, "size": "32M", "num_layers": 1, "hidden_size": 24,
        "validation_share": 0.2, "validation_pieces": 4, "validate_every": 5, "log_every": 3,
        "checkpoint_every": 4, "device": "cpu", **options,
    }  # fmt: skip
    fields["train"] = {**TRAIN, **options.get("train", {})}
    return RescorerJob(folder / "target", folder / "out", [str(write_text(folder))], **fields)


@pytest.mark.parametrize("own_rows", [0, 70])
def test_a_killed_training_ends_with_the_same_bits(tmp_path, own_rows):
    job = make_job(tmp_path, own_rows=own_rows, prompt_length=4)
    plain, resumed = check_resumed(job, run_rescorer_job, tmp_path)
    assert (resumed.loss, resumed.validation_loss) == (plain.loss, plain.validation_loss)


def test_the_result_is_a_causal_lm_that_has_learnt_the_text(tmp_path):
    job = make_job(tmp_path, size="tiny", num_layers=None, hidden_size=32,
                   train={"steps": 90, "batch_size": 8})  # fmt: skip
    result = run_rescorer_job(job)
    model = AutoModelForCausalLM.from_pretrained(result.output).eval()
    assert isinstance(model, GPTNeoXForCausalLM)
    assert result.num_parameters == sum(weight.numel() for weight in model.parameters())
    held = torch.tensor(looping_text(1200, 0)[-238:].astype(np.int64)).view(14, 17)
    with torch.inference_mode():
        logits = model(input_ids=held[:, :-1]).logits  # the model's own forward
    loss = float(torch.nn.functional.cross_entropy(logits.transpose(1, 2), held[:, 1:]))
    assert loss < 2.2  # of ln 48 = 3.87
    assert result.validation_loss == pytest.approx(loss, abs=0.5)  # on other pieces of that text
    assert {"1"} == {key for line in read_losses(result.output) for key in line.get("losses", "1")}


@pytest.mark.parametrize(
    ("size", "expected"),
    [("32M", 23_241_600), ("61M", 40_986_240), ("94M", 81_912_576), ("tiny", 6_829_696)],
)
def test_true_numbers_of_parameters_with_the_papers_vocabulary(size, expected):
    """50,257 tokens and 1,024 positions; the output embedding is the input's."""
    with torch.device("meta"):
        model = build_rescorer(size, 50257)
    assert sum(weight.numel() for weight in model.parameters()) == expected


def test_finished_and_other_runs(tmp_path, capsys):
    job = make_job(tmp_path)
    first = run_rescorer_job(job)
    again = run_rescorer_job(job)
    assert again.was_finished
    assert again.loss == first.loss
    other = dataclasses.replace(job, hidden_size=12)
    with pytest.raises(ValueError, match="holds a run with hidden_size 24"):
        run_rescorer_job(other)
    assert run_rescorer_job(dataclasses.replace(other, restart=True)).num_parameters != (
        first.num_parameters
    )
    command = ["rescorer", "train", str(job.inputs[0]), "--target", str(job.target), "-o",
               str(tmp_path / "cli"), "--vocab-size", str(VOCAB), "--size", "small",
               "--hidden-size", "8", "--num-layers", "1", "--steps", "2", "--sequence-length",
               "16", "--batch-size", "2", "--validation-share", "0.1"]  # fmt: skip
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "on validation text" in printed
    record = json.loads((tmp_path / "cli/training.json").read_text())
    assert record["options"]["size"] == "small"


def test_fine_tuning_starts_from_the_given_rescorer(tmp_path):
    first = run_rescorer_job(make_job(tmp_path, train={"steps": 40}))
    sizes = {"num_layers": None, "hidden_size": None}
    job = make_job(tmp_path, initial=first.output, train={"steps": 1, "base_rate": 0.0}, **sizes)
    tuned = run_rescorer_job(dataclasses.replace(job, output=tmp_path / "tuned"))
    weights, expected = read_weights(tmp_path / "tuned"), read_weights(first.output)
    assert all(torch.equal(weight, expected[name]) for name, weight in weights.items())
    assert tuned.validation_loss == pytest.approx(first.validation_loss, abs=1e-4)
    assert make_job(tmp_path, initial=first.output).train_options(32).base_rate == 0.02
    large = build_rescorer("tiny", VOCAB + 1, hidden_size=8, num_layers=1)
    large.save_pretrained(tmp_path / "large")
    bad = dataclasses.replace(job, initial=tmp_path / "large", output=tmp_path / "bad")
    with pytest.raises(ValueError, match="has a vocabulary of 49, the target one of 48"):
        run_rescorer_job(bad)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"size": "7B"}, "size is '7B'; expected one of tiny, small, 32M, 61M, 94M"),
        ({"hidden_size": 20}, "hidden_size is 20; expected a multiple of 12"),
        ({"initial": "x"}, "num_layers and hidden_size are for new rescorers"),
        ({"train": {"sequence_length": 33}}, "sequence_length is 33, the target has"),
        ({"own_rows": 5, "train": {"sequence_length": 32}}, "expected 16 .* to 31"),
    ],
)
def test_jobs_that_do_not_fit_are_refused(changed, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run_rescorer_job(make_job(tmp_path, **changed))
