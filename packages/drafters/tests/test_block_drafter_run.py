"""`drafter train` from files to files: the result, resumed runs, two processes, refusals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

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

from blockwise_models import VOCAB
from lattice_bpd.cli import main
from lattice_bpd.decode import generate
from lattice_bpd.models import BlockwiseLM
from lattice_bpd_drafters.block_drafter import BlockDrafter
from lattice_bpd_drafters.block_run import BlockJob, run_block_job
from lattice_bpd_drafters.block_training import BlockTrainOptions

TRAIN = BlockTrainOptions(
    steps=12, batch_size=4, sequence_length=20, anchors=4, warmup=2, validate_every=5
)


def make_job(folder: Path, **options: Any) -> BlockJob:
    """A short run on files in `folder`, which are written where they are missing."""
    if not (folder / "target").is_dir():
        write_base(folder / "target")
    fields: dict[str, Any] = {
        "corpus": {"vocab_size": VOCAB}, "num_layers": 1, "block_size": 4, "options": TRAIN,
        "mask_token_id": VOCAB - 1, "own_rows": 70, "prompt_length": 4, "validation_share": 0.2,
        "validation_pieces": 4, "log_every": 3, "checkpoint_every": 4, "device": "cpu", **options,
    }  # fmt: skip
    return BlockJob(folder / "target", folder / "out", [str(write_text(folder))], **fields)


def test_a_killed_training_ends_with_the_same_bits(tmp_path):
    plain, resumed = check_resumed(make_job(tmp_path), run_block_job, tmp_path)
    assert resumed.losses == plain.losses
    assert resumed.block_efficiency == plain.block_efficiency


def test_the_result_is_a_model_folder(tmp_path, capsys):
    job = make_job(tmp_path)
    result = run_block_job(job)
    assert result.tokens == 70 * 20
    assert [line["step"] for line in read_losses(result.output) if "validation" in line] == [
        5, 10, 12,
    ]  # fmt: skip
    assert result.losses.keys() == result.accuracies.keys() == {1, 2, 3}
    model = BlockwiseLM.from_pretrained(result.output)
    assert isinstance(model.heads, BlockDrafter)
    assert model.heads.hidden_layers == (0,)
    target = read_weights(tmp_path / "target")
    saved = read_weights(result.output)
    assert all(torch.equal(saved[name], weight) for name, weight in target.items())
    drafts = generate(model.base, [1, 6], "bpd", heads=model.heads, max_new_tokens=9)
    plain = model.base.generate(torch.tensor([[1, 6]]), max_new_tokens=9, do_sample=False)
    assert drafts.token_ids == plain[0, 2:].tolist()
    assert "slot 3" in (result.output / "losses.svg").read_text()

    again = run_block_job(job)
    assert again.was_finished
    other = dataclasses.replace(job, options=dataclasses.replace(TRAIN, gamma=2.0))
    with pytest.raises(ValueError, match="gamma"):
        run_block_job(other)
    run_block_job(dataclasses.replace(other, restart=True))
    changed = read_weights(result.output)
    name = "block_drafter: fc.weight"
    assert not torch.equal(changed[name], saved[name])

    command = ["drafter", "train", str(job.inputs[0]), "--target", str(job.target), "-o",
               str(tmp_path / "cli"), "--vocab-size", str(VOCAB), "--num-layers", "1",
               "--block-size", "4", "--mask-token-id", str(VOCAB - 1), "--steps", "2",
               "--own-rows", "0", "--sequence-length", "20", "--validation-share", "0"]  # fmt: skip
    assert main(command) == 0
    output = capsys.readouterr().out
    assert "slot  training loss" in output
    assert "2 steps" in output
    assert json.loads((tmp_path / "cli/training.json").read_text())["options"]["own_rows"] == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"resume": True, "restart": True}, "mutually exclusive"),
        ({"hidden_layers": (1,)}, "the target has 1, expected 0..0"),
        ({"resume": True}, "no run to resume"),
        ({"mask_token_id": None}, "the text contains all 48 token ids"),
    ],
)
def test_jobs_that_do_not_fit_are_refused(changed, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run_block_job(make_job(tmp_path, **changed))
