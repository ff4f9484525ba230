"""Commands killed at random moments: the old file or the new one, and no heap of temporary ones."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from lattice_bpd import NGramLM

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["lattice_bpd.lm.convert", "lattice_bpd.train", "lattice_bpd.cli"])
VOCAB = 500


def run_child(arguments: list[str], ready: Connection) -> None:
    """The whole life of a child."""
    from lattice_bpd.cli import main

    warnings.simplefilter("ignore")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    os.environ["TMPDIR"] = str(Path(arguments[-1]).parent)  # where leftovers are seen
    ready.send_bytes(b"ready")
    os._exit(main(["ngram", *arguments]))


def run(arguments: Sequence[str], kill_after: float | None = None) -> tuple[int | None, float]:
    """A command in another process, killed so many seconds after it began; status and seconds."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=run_child, args=(list(arguments), theirs))
    process.start()
    theirs.close()
    ours.recv_bytes()
    start = time.perf_counter()
    with contextlib.closing(ours):
        process.join(60 if kill_after is None else kill_after)
        process.kill()
        process.join()
    return process.exitcode, time.perf_counter() - start


class Folder:
    """Inputs and an output, with what else appears beside them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        rng = np.random.default_rng(0)
        for part in range(5):
            ids = (VOCAB * rng.random(12_000) ** 2).astype(np.int32)
            np.save(path / f"ids{part}.npy", ids)
        self.parts = [str(path / f"ids{part}.npy") for part in range(5)]
        texts = [np.load(part) for part in self.parts]
        NGramLM.train(texts, 3, vocab_size=VOCAB, smoothing="witten_bell").save(path / "in.lm")
        self.inputs = {entry.name for entry in path.iterdir()}

    def leftovers(self, output: Path) -> list[str]:
        names = {entry.name for entry in self.path.iterdir()}
        return sorted(names - self.inputs - {output.name})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Folder(tmp_path_factory.mktemp("crash"))


COMMANDS = {
    "train": ("out.lm", "train {ids} --vocab-size 500 --order 3", 6),
    "spill": ("out.lm", "train {ids} --vocab-size 500 --order 3 --memory 5M", 5),
    "prune": ("out.lm", "prune {here}/in.lm --prune-to 8000", 4),
    "arpa": ("out.arpa", "convert {here}/in.lm", 4),
    "gzip": ("out.arpa.gz", "convert {here}/in.lm", 4),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_leaves_the_old_file_or_the_new_one(name: str, folder: Folder) -> None:
    output_name, command, kills = COMMANDS[name]
    output = folder.path / output_name
    words = [
        part
        for word in command.split()
        for part in (folder.parts if word == "{ids}" else [word.format(here=folder.path)])
    ]
    words += [str(output)] if name in ("arpa", "gzip") else ["-o", str(output)]
    status, seconds = run(words)
    assert status == 0
    new, old = output.read_bytes(), b"an older file"
    rng = np.random.default_rng(list(COMMANDS).index(name))
    for _ in range(kills):
        output.write_bytes(old)
        after = seconds * 1.1 * rng.random()
        status, taken = run(words, after)
        assert status in (0, -signal.SIGKILL)
        if status == 0:  # the first run found cold caches
            seconds = min(seconds, taken)
        assert output.read_bytes() in (old, new), f"broken after a kill at {after:.3f} s"
        assert len(folder.leftovers(output)) <= 1
    assert run(words)[0] == 0
    assert output.read_bytes() == new
    assert folder.leftovers(output) == []
    output.unlink()
