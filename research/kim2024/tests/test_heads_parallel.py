"""Head training in two gloo processes: one process's weights, and no hang where one dies."""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("torch")

import torch
from heads_training import (
    checkpoint_step,
    make_job,
    read_losses,
    read_weights,
    start_two,
    write_base,
)
from torch import distributed

from lattice_bpd_kim2024.heads.parallel import ALONE, join_processes
from lattice_bpd_kim2024.heads.run import train_heads
from lattice_bpd_kim2024.heads.trainer import HeadTrainer

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="torch without gloo")


@pytest.mark.parametrize("recipe", ["finetune", "distil"])
def test_two_processes_train_what_one_does(recipe, tmp_path):
    write_base(tmp_path / "base")  # no dropout, which each process draws for itself
    train = {"accumulate": 2, "other_lr": 1e-3, "matrix_lr": 1e-2}
    job = make_job(tmp_path, recipe, train=train, validate_every=6)
    for status, words in [child.wait() for child in start_two(job, tmp_path)]:
        assert status == 0, words
    one = dataclasses.replace(job, output=tmp_path / "one")
    train_heads(one)
    both, alone = read_weights(tmp_path / "out"), read_weights(tmp_path / "one")
    assert both.keys() == alone.keys()
    for name, weight in both.items():
        # Muon rounds to bfloat16 inside.
        torch.testing.assert_close(weight, alone[name], rtol=0.0, atol=2e-3)
    for line, other in zip(read_losses(one.output), read_losses(job.output), strict=True):
        figures, others = line.get("losses"), other.get("losses")
        assert figures == (None if others is None else pytest.approx(others, rel=1e-3))
        if "validation" in line:
            scores, other_scores = line["validation"], other["validation"]
            assert scores["positions"] == other_scores["positions"]
            assert scores["losses"] == pytest.approx(other_scores["losses"], rel=1e-3)


def second_gets(number: int) -> None:
    """Send a signal to process 1 before its fourth step."""
    take_step = HeadTrainer.take_step

    def signalled(self):
        if os.environ["RANK"] == "1" and self.report.step == 3:
            os.kill(os.getpid(), number)
        return take_step(self)

    HeadTrainer.take_step = signalled


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
def test_a_process_that_dies_or_hangs_ends_the_others_with_a_message(name, tmp_path):
    job = make_job(tmp_path, "frozen", process_timeout=8.0 if name == "SIGSTOP" else 300.0)
    prepare = functools.partial(second_gets, getattr(signal, name))
    first, second = start_two(job, tmp_path, prepare)
    status, words = first.wait(120.0)
    second.wait(0.1)
    assert status == 2, words
    assert "ConnectionError process 0 of 2: another process ended or sent nothing" in words
    assert "start all processes again to resume from the last checkpoint" in words


def test_a_stop_of_one_process_stops_all_behind_a_checkpoint(tmp_path):
    job = make_job(tmp_path, "frozen", checkpoint_every=0)
    prepare = functools.partial(second_gets, signal.SIGINT)
    outcomes = [child.wait() for child in start_two(job, tmp_path, prepare)]
    assert [status for status, _ in outcomes] == [130, 130], outcomes
    assert checkpoint_step(tmp_path / "out") == 4
    assert train_heads(job).steps == 12


def test_an_error_of_the_first_process_is_said_by_all(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    job = make_job(tmp_path, "frozen")
    for status, words in [child.wait() for child in start_two(job, tmp_path)]:
        assert status == 2
        assert "has files but no training.json" in words


def test_a_batch_must_be_a_multiple_of_the_processes(tmp_path):
    job = make_job(tmp_path, "frozen", train={"batch_size": 3})
    for status, words in [child.wait() for child in start_two(job, tmp_path)]:
        assert status == 2
        assert "batch_size is 3; expected a multiple of the 2 processes" in words


def test_torchrun_starts_the_command(tmp_path):
    job = make_job(tmp_path, "frozen")
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            "-m", "lattice_bpd.cli", "heads", "train", job.inputs[0], "--recipe", "frozen",
            "--base", job.base, "-o", job.output, "--device", "cpu", "--steps", "2",
            "--batch-size", "2", "--sequence-length", "16", "--num-heads", "3"]  # fmt: skip
    done = subprocess.run(
        list(map(str, line)), capture_output=True, text=True, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("head  training loss") == 1
    assert (job.output / "blockwise_heads.json").exists()


def test_alone_needs_no_group(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with join_processes("cpu", 5.0) as processes:
        assert processes is ALONE
        assert processes.broadcast(3) == 3
        assert not processes.any_true(False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with (
        pytest.raises(ValueError, match="WORLD_SIZE is 2 without RANK; start with torchrun"),
        join_processes("cpu", 5.0),
    ):
        pass
