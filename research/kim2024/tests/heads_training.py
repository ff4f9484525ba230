"""What tests of training from files share: a small target, text, runs in other processes."""

from __future__ import annotations

import dataclasses
import functools
import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

from blockwise_models import VOCAB, looping_text
from lattice_bpd.watcher import Watcher
from lattice_bpd_kim2024.heads.job import HeadJob
from lattice_bpd_kim2024.heads.run import train_heads
from lattice_bpd_kim2024.rescorer import RescorerJob, run_rescorer_job

CONTEXT = multiprocessing.get_context("forkserver")
# What takes long to import; the fork server does not see this folder.
CONTEXT.set_forkserver_preload(
    ["lattice_bpd_kim2024.heads.run", "lattice_bpd_kim2024.rescorer"]
    + [f"transformers.models.{n}.modeling_{n}" for n in ("gpt2", "llama", "mistral", "gemma2")]
)

Job = HeadJob | RescorerJob
T = 16
HEADS = 3
SMALL = {"hidden_size": 16, "num_layers": 1, "num_attention_heads": 2, "max_positions": 32}


def write_base(folder: Path, *, dropout: float = 0.0, seed: int = 0) -> Path:
    """A GPT-2 with random weights as a folder of transformers."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=32, n_embd=16, n_layer=1, n_head=2, resid_pdrop=dropout,
        embd_pdrop=dropout, attn_pdrop=dropout, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    torch.nn.init.normal_(model.transformer.wte.weight, std=0.3)  # logits that can be learnt
    model.save_pretrained(folder)
    return folder


def write_text(folder: Path, length: int = 1200, seed: int = 0) -> Path:
    """The noisy cycle as .npy."""
    path = folder / f"text-{seed}.npy"
    np.save(path, looping_text(length, seed))
    return path


def make_job(folder: Path, recipe: str, **options: Any) -> HeadJob:
    """A short run on files in `folder`, which are written where they are missing."""
    base = folder / "base"
    if not base.is_dir():
        write_base(base, dropout=0.1)
        (folder / "small.json").write_text(json.dumps(SMALL))
    train = {"steps": 12, "batch_size": 4, "sequence_length": T, "warmup": 2, "precision": "fp32"}
    more = {"config": folder / "small.json"} if recipe == "joint" else {"base": base}
    fields: dict[str, Any] = {
        "output": folder / "out",
        "inputs": [str(write_text(folder))],
        "corpus": {"vocab_size": VOCAB},
        "num_heads": HEADS,
        "own_rows": 70,
        "prompt_length": 4,
        "log_every": 3,
        "checkpoint_every": 4,
        "device": "cpu",
        **more,
        **options,
    }
    fields["train"] = {**train, **options.get("train", {})}
    return HeadJob(recipe, **fields)


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a result."""
    found = {}
    for path in sorted(folder.rglob("*.safetensors")):
        prefix = "" if path.parent == folder else f"{path.parent.name}: "
        found |= {prefix + name: weight for name, weight in load_file(path).items()}
    assert found
    return found


def read_losses(folder: Path) -> list[dict[str, Any]]:
    """The loss log without what depends on the clock."""
    lines = [json.loads(line) for line in (folder / "losses.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def checkpoint_step(folder: Path) -> int:
    """The step of the checkpoint of an unfinished run."""
    return int(torch.load(folder / "training" / "checkpoint")["report"]["step"])


class Watching(Watcher):
    """Calls a function after each step."""

    def __init__(self, on_step: Callable[[int], None]) -> None:
        self.on_step, self.stage, self.steps = on_step, "", 0

    def begin(self, stage: str, total: int | None = None) -> None:  # noqa: ARG002
        self.stage = stage

    def advance(self, *_: Any, **__: Any) -> None:
        if self.stage == "training":
            self.steps += 1
            self.on_step(self.steps)


def run_child(
    job: Job,
    prepare: Callable[[], Callable[[int], None] | None],
    words: Path,
    environment: dict[str, str],
) -> None:
    """The whole life of a child: what it says goes to a file."""
    os.dup2(os.open(words, os.O_WRONLY | os.O_CREAT), 2)
    os.environ.update(environment)
    on_step = prepare() or (lambda _: None)
    try:
        if isinstance(job, HeadJob):
            train_heads(job, Watching(on_step))
        else:
            run_rescorer_job(job, Watching(on_step))
    except (ValueError, OSError) as error:
        os.write(2, f"{type(error).__name__} {error}".encode())
        os._exit(2)
    except KeyboardInterrupt:
        os._exit(130)


class Child:
    """A run in another process, which a fork server that has torch loaded starts at once.

    Args:
        job: the run.
        prepare: called in the child first; may give a function that is called after each step.
        words: file for what the child says.
        environment: of the child.
    """

    def __init__(
        self,
        job: Job,
        prepare: Callable[[], Callable[[int], None] | None],
        words: Path,
        **environment: str,
    ) -> None:
        self.words = words
        self.process = CONTEXT.Process(target=run_child, args=(job, prepare, words, environment))
        self.process.start()

    def wait(self, timeout: float = 120.0) -> tuple[int | None, str]:
        """Exit status (negative: the signal) and words; the child is gone afterwards."""
        self.process.join(timeout)
        status = self.process.exitcode
        self.process.kill()
        self.process.join()
        return status, self.words.read_text() if self.words.exists() else ""


def nothing() -> None:
    """Prepares nothing."""


def signal_at(number: int, step: int) -> Callable[[int], None]:
    """Prepares a child that gets a signal after a step."""
    return lambda steps: signal.raise_signal(number) if steps == step else None


def assert_same_result(one: Path, other: Path) -> None:
    """Equal weights, bit for bit, and equal logs."""
    first, second = read_weights(one), read_weights(other)
    assert first.keys() == second.keys()
    for name, weight in first.items():
        assert torch.equal(weight, second[name]), name
    assert read_losses(one) == read_losses(other)


def check_resumed(job: Any, run: Callable[[Any], Any], folder: Path) -> tuple[Any, Any]:
    """The results of a run, and of one that is killed, interrupted and resumed: the same bits."""
    plain = run(dataclasses.replace(job, output=folder / "plain"))
    for number, step, status in ((signal.SIGKILL, 7, -signal.SIGKILL), (signal.SIGINT, 6, 130)):
        child = Child(job, functools.partial(signal_at, number, step), folder / "words")
        assert child.wait()[0] == status
        assert checkpoint_step(job.output) == (4 if number == signal.SIGKILL else 10)
    resumed = run(dataclasses.replace(job, resume=True))
    assert_same_result(job.output, plain.output)
    assert not (job.output / "training").exists()
    return plain, resumed
