"""What tests of `heads train` share: a small target and text as files, runs in other processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

from blockwise_models import VOCAB, looping_text
from lattice_bpd.train.head_job import HeadJob

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
    for path in sorted(folder.glob("*.safetensors")):
        found.update(load_file(path))
    assert found
    return found


def read_losses(folder: Path) -> list[dict[str, Any]]:
    """The loss log without what depends on the clock."""
    lines = [json.loads(line) for line in (folder / "losses.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


# argv: a HeadJob as a Python expression, then code that is run before training.
CHILD = """
import os, signal, sys, warnings
from pathlib import Path
import torch
torch.set_num_threads(1)
from lattice_bpd.cli.progress import quiet_transformers
quiet_transformers()
from lattice_bpd.train import checkpoints, head_loop, head_trainer, watcher
from lattice_bpd.train.head_job import HeadJob
from lattice_bpd.train.head_run import train_heads
from pathlib import PosixPath

class Watching(watcher.SilentWatcher):
    steps = 0
    def begin(self, stage, total=None):
        self.stage = stage
    def advance(self, total=None, note=""):
        if self.stage == "training":
            self.steps += 1
            on_step(self.steps)

def on_step(steps):
    pass

exec(sys.argv[2])
try:
    train_heads(eval(sys.argv[1]), Watching())
except (ValueError, OSError) as error:
    print(type(error).__name__, error, file=sys.stderr)
    sys.exit(2)
except KeyboardInterrupt:
    sys.exit(130)
"""


def start(job: HeadJob, code: str = "", **environment: str) -> subprocess.Popen[str]:
    """Begin a run in another process."""
    command = [sys.executable, "-c", CHILD, repr(job), code]
    return subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )


def start_two(job: HeadJob, code: str = "") -> list[subprocess.Popen[str]]:
    """Begin a run of two processes; `code` knows its number as os.environ["RANK"]."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [start(job, code, RANK=str(rank), LOCAL_RANK=str(rank), **common) for rank in (0, 1)]
