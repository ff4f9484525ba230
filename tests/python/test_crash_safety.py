"""Commands ended at random moments: the old file or the new one, and no heap of temporary ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lattice_bpd import NGramLM

SIGNALS = {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 130}
COMMANDS = {
    "spill": "train {ids} --vocab-size 500 --order 3 --memory 5M -o {out}.lm",
    "prune": "prune {here}/in.lm --prune-to 8000 -o {out}.lm",
    "gzip": "convert {here}/in.lm {out}.arpa.gz",
}
RUN = "import sys, lattice_bpd.cli as c; print('ready', flush=True); sys.exit(c.main(sys.argv[1:]))"


def run(words: list[str], after: float | None = None, how: int = 0) -> tuple[int, float]:
    """A command's status and seconds; it gets a signal so many seconds after its imports."""
    environment = {**os.environ, "TMPDIR": str(Path(words[-1]).parent)}  # where leftovers are seen
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", RUN, "ngram", *words], env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        start = time.perf_counter()
        if after is not None:
            time.sleep(after)
            process.send_signal(how)
        process.stdout.read()
        status = process.wait(60)
    return status, time.perf_counter() - start


@pytest.mark.parametrize("name", COMMANDS)
def test_an_ended_command_leaves_the_old_file_or_the_new_one(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(list(COMMANDS).index(name))
    texts = [(500 * rng.random(12_000) ** 2).astype(np.int32) for _ in range(5)]
    for part, text in enumerate(texts):
        np.save(tmp_path / f"ids{part}.npy", text)
    NGramLM.train(texts, 3, vocab_size=500, smoothing="witten_bell").save(tmp_path / "in.lm")
    inputs = {entry.name for entry in tmp_path.iterdir()}
    ids = " ".join(map(str, sorted(tmp_path.glob("*.npy"))))
    words = COMMANDS[name].format(ids=ids, here=tmp_path, out=tmp_path / "out").split()
    status, seconds = run(words)
    output = Path(words[-1])
    assert status == 0
    new, old = output.read_bytes(), b"an older file"
    killed: set[str] = set()  # what SIGKILL left
    for how in 2 * list(SIGNALS):
        output.write_bytes(old)
        after = seconds * 1.1 * rng.random()
        status, taken = run(words, after, how)
        assert status in (0, -how, SIGNALS[how])
        if status == 0:  # the first run found cold caches
            seconds = min(seconds, taken)
        assert output.read_bytes() in (old, new), f"broken after a signal at {after:.3f} s"
        leftovers = {entry.name for entry in tmp_path.iterdir()} - inputs - {output.name}
        if how == signal.SIGKILL:
            assert len(leftovers - killed) <= 1
            killed |= leftovers
        assert leftovers <= killed
    assert run(words)[0] == 0
    assert output.read_bytes() == new
    output.unlink()
    left = {entry.name for entry in tmp_path.iterdir()} - inputs
    assert left <= killed if name == "gzip" else not left  # the core removes that of killed writers
