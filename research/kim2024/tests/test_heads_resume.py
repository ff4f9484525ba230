"""Interrupted head trainings: the same bits; other options refused."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from heads_training import (
    Child,
    assert_same_result,
    checkpoint_step,
    make_job,
    signal_at,
    write_base,
)

from blockwise_models import VOCAB, looping_text
from lattice_bpd import FormatError
from lattice_bpd.train import trainer
from lattice_bpd.watcher import Watcher
from lattice_bpd_kim2024.heads import text_run
from lattice_bpd_kim2024.heads.run import train_heads


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_while_saving():
    replacing = trainer.replacing

    @contextlib.contextmanager
    def replacing_half(path):
        with replacing(path) as temporary:
            yield temporary
            if path.exists():
                die()

    trainer.replacing = replacing_half


def killed_at_the_end():
    text_run.write_loss_plot = lambda *_: die()


@pytest.mark.parametrize(
    ("recipe", "prepare", "train"),
    [
        # Dropout in the target, both optimizers, one head, passes: all that a state could miss.
        (
            "finetune",
            partial(signal_at, signal.SIGKILL, 7),
            {"one_head": True, "accumulate": 2, "seed": 5},
        ),
        ("joint", killed_while_saving, {}),
        ("distil", killed_at_the_end, {}),
    ],
)
def test_a_killed_training_ends_with_the_same_bits(recipe, prepare, train, tmp_path):
    job = make_job(tmp_path, recipe, train=train, validate_every=5)
    status, words = Child(job, prepare, tmp_path / "words").wait()
    assert status == -signal.SIGKILL, words
    assert not (tmp_path / "out" / "blockwise_heads.json").exists() or prepare == killed_at_the_end
    train_heads(job)
    whole = dataclasses.replace(job, output=tmp_path / "whole")
    train_heads(whole)
    assert_same_result(tmp_path / "out", tmp_path / "whole")
    assert not (tmp_path / "out" / "training").exists()


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_a_signal_stops_behind_a_checkpoint_of_its_step(number, expected, tmp_path):
    job = make_job(tmp_path, "frozen", checkpoint_every=0)
    status, words = Child(job, partial(signal_at, number, 5), tmp_path / "words").wait()
    assert status == expected, words
    assert checkpoint_step(tmp_path / "out") == 5
    train_heads(job)
    whole = dataclasses.replace(job, output=tmp_path / "whole")
    train_heads(whole)
    assert_same_result(tmp_path / "out", tmp_path / "whole")


class StopAt(Watcher):
    """Raises in a stage, as an error or a crash would."""

    def __init__(self, stage: str, count: int) -> None:
        self.at, self.count, self.stage = stage, count, ""

    def begin(self, stage: str, total: int | None = None) -> None:  # noqa: ARG002
        self.stage = stage

    def advance(self, *_: Any, **__: Any) -> None:
        self.count -= self.stage == self.at
        if self.count < 0:
            raise RuntimeError("stopped")


def stop(job, stage: str = "training", count: int = 6) -> None:
    with pytest.raises(RuntimeError, match="stopped"):
        train_heads(job, StopAt(stage, count))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": {"steps": 13}}, "holds a run with steps 12; requested: 13; give the same"),
        ({"recipe": "distil"}, "holds a run with head_fraction|holds a run with recipe 'frozen'"),
        ({"corpus": {"vocab_size": VOCAB, "eos_id": 1}}, "with eos_id None; requested: 1"),
        ({"text": 900}, r"with bytes_of_inputs \d+; requested:"),
    ],
)
@pytest.mark.parametrize("finished", [False, True])
def test_resuming_with_other_options_names_them(options, message, finished, tmp_path):
    job = make_job(tmp_path, "frozen")
    if finished:
        train_heads(job)
    else:
        stop(job)
    options = dict(options)
    length = options.pop("text", 1200)
    job = make_job(tmp_path, options.pop("recipe", "frozen"), **options)
    np.save(tmp_path / "text-0.npy", looping_text(length))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    with pytest.raises(ValueError, match=message):
        train_heads(job)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


def test_resuming_on_another_base_is_refused(tmp_path):
    stop(make_job(tmp_path, "frozen"))
    write_base(tmp_path / "base", seed=1, dropout=0.1)
    with pytest.raises(ValueError, match="holds a run on another base"):
        train_heads(make_job(tmp_path, "frozen"))


def test_a_second_run_in_the_same_folder_is_refused(tmp_path):
    job = make_job(tmp_path, "frozen")

    class Second(Watcher):
        def advance(self, *_: Any, **__: Any) -> None:
            for other in (job, dataclasses.replace(job, restart=True)):
                with pytest.raises(BlockingIOError, match="another process works here"):
                    train_heads(other)

    assert train_heads(job, Second()).steps == 12


def test_a_damaged_record_of_options_is_refused(tmp_path):
    job = make_job(tmp_path, "frozen")
    stop(job)
    (tmp_path / "out" / "training.json").write_text("[]")
    with pytest.raises(FormatError, match=r"training\.json: damaged, or of another version"):
        train_heads(job)


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    for restart in (False, True):
        with pytest.raises(ValueError, match=r"has files but no training\.json"):
            train_heads(make_job(tmp_path, "frozen", restart=restart))
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]
    with pytest.raises(NotADirectoryError, match="is a file; expected a folder"):
        train_heads(make_job(tmp_path, "frozen", output=out / "thesis.tex"))


@pytest.mark.parametrize("damage", ["cut", "version", "weights", "log"])
def test_damaged_checkpoints_are_refused(damage, tmp_path):
    job = make_job(tmp_path, "frozen")
    stop(job)
    path = tmp_path / "out" / "training" / "checkpoint"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:200])
    elif damage == "version":
        torch.save({**torch.load(path), "version": 99}, path)
    elif damage == "weights":
        content = torch.load(path)
        content["weights"].popitem()
        torch.save(content, path)
    else:
        (tmp_path / "out" / "losses.jsonl").write_text("")
    with pytest.raises(FormatError, match="--restart"):
        train_heads(job)
    assert train_heads(dataclasses.replace(job, restart=True)).steps == 12
