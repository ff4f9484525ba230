"""Commands ended at random moments: the old file or the new one, and no heap of temporary ones."""

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
SIGNALS = {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 143}


def run_child(arguments: list[str], ready: Connection) -> None:
    """The whole life of a child."""
    from lattice_bpd.cli import main

    warnings.simplefilter("ignore")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    os.environ["TMPDIR"] = str(Path(arguments[-1]).parent)  # where leftovers are seen
    ready.send_bytes(b"ready")
    try:
        status = main(["ngram", *arguments])
    except KeyboardInterrupt:  # before or after the command
        status = 130
    os._exit(status)


def run(
    arguments: Sequence[str], after: float | None = None, how: int = signal.SIGKILL
) -> tuple[int | None, float]:
    """A command in another process, which gets a signal so many seconds after it began."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=run_child, args=(list(arguments), theirs))
    process.start()
    theirs.close()
    ours.recv_bytes()
    start = time.perf_counter()
    with contextlib.closing(ours):
        process.join(60 if after is None else after)
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, how)
        process.join(60)
    return process.exitcode, time.perf_counter() - start


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token ids in five files, and an LM of them."""
    folder, rng = tmp_path_factory.mktemp("crash"), np.random.default_rng(0)
    texts = [(VOCAB * rng.random(12_000) ** 2).astype(np.int32) for _ in range(5)]
    for part, text in enumerate(texts):
        np.save(folder / f"ids{part}.npy", text)
    lm = NGramLM.train(texts, 3, vocab_size=VOCAB, smoothing="witten_bell")
    lm.save(folder / "in.lm")
    return folder


COMMANDS = {
    "train": ("out.lm", "train {ids} --vocab-size 500 --order 3 -o"),
    "spill": ("out.lm", "train {ids} --vocab-size 500 --order 3 --memory 5M -o"),
    "prune": ("out.lm", "prune {here}/in.lm --prune-to 8000 -o"),
    "arpa": ("out.arpa", "convert {here}/in.lm"),
    "gzip": ("out.arpa.gz", "convert {here}/in.lm"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_an_ended_command_leaves_the_old_file_or_the_new_one(name: str, folder: Path) -> None:
    output, command = folder / COMMANDS[name][0], COMMANDS[name][1]
    inputs = {entry.name for entry in folder.iterdir()}
    ids = " ".join(str(path) for path in sorted(folder.glob("*.npy")))
    words = [*command.format(ids=ids, here=folder).split(), str(output)]
    status, seconds = run(words)
    assert status == 0
    new, old = output.read_bytes(), b"an older file"
    rng = np.random.default_rng(list(COMMANDS).index(name))
    for how in [*2 * [signal.SIGINT, signal.SIGTERM], *2 * [signal.SIGKILL]]:
        output.write_bytes(old)
        after = seconds * 1.1 * rng.random()
        status, taken = run(words, after, how)
        assert status in (0, SIGNALS[how])
        if status == 0:  # the first run found cold caches
            seconds = min(seconds, taken)
        assert output.read_bytes() in (old, new), f"broken after a signal at {after:.3f} s"
        leftovers = {entry.name for entry in folder.iterdir()} - inputs - {output.name}
        assert len(leftovers) <= (1 if how == signal.SIGKILL else 0)
    assert run(words)[0] == 0
    assert output.read_bytes() == new
    output.unlink()
    assert {entry.name for entry in folder.iterdir()} == inputs  # of killed ones too
